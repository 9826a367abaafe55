"""Make clusterctl/cli/completion/table.json of the declarations: python tests/cli/make_completions.py."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

import clusterctl.cli.completion
from clusterctl.cli.chosen_settings import DECIDED
from clusterctl.cli.completion.scripts import SCRIPTS
from clusterctl.cli.declarations import app
from clusterctl.common.engines import ENGINES
from clusterctl.config.declarations import TABLE, Setting
from clusterctl.config.hosts import ROLES
from clusterctl.config.parsers import flag
from clusterctl.fake.backend import _MODULES
from clusterctl.templates import TEMPLATES

PATH = Path(clusterctl.cli.completion.__file__).parent / "table.json"
#: What completes the value of an option or an argument, by its command and name, or by its name alone.
KINDS = {
    **dict.fromkeys(("save job", "stop job", "exec job", "metrics job"), "job"),
    **dict.fromkeys(("job", "diff a", "diff b"), "run"),
    **dict.fromkeys(("--job_workspace", "--resume-from", "--load"), "job"),
    **{"workspace_or_job": "target", "--name": "name", "--run": "run_number", "--load-run": "run_number"},
    **{"--tag": "tag", "--load-tag": "tag", "--only": "nodes", "--node": "nodes", "node": "node", "--set": "setting"},
    **{"--role": "role", "--engine": "engine", "--template": "template", "--backend": "backend", "shell": "shell"},
    **{"submit --to": "scheduler", "export --to": "format"},
    **dict.fromkeys(("--conf", "file", "report --output"), "file"),
    **dict.fromkeys(("--dir", "--output", "directory", "workspace", "--job_dispatch_package"), "dir"),
}
WORDS = {
    "role": dict.fromkeys((*ROLES, "scheduler"), ""),
    "engine": dict.fromkeys(ENGINES, ""),
    "template": {name: template.summary for name, template in TEMPLATES.items()},
    "backend": dict.fromkeys(_MODULES, ""),
    "scheduler": dict.fromkeys(("slurm", "kubernetes"), ""),
    "format": dict.fromkeys(("tensorboard", "trace", "csv"), ""),
    "shell": dict.fromkeys(SCRIPTS, ""),
}


def table() -> dict[str, Any]:
    """Return what completion has to know of the declarations."""
    group: Any = typer.main.get_command(app)
    settings = {setting.name: _setting(setting) for setting in TABLE if setting.name not in DECIDED}
    return {"commands": dict(_commands("", group)), "words": WORDS, "settings": settings}


def text() -> str:
    return json.dumps(table(), indent=1, ensure_ascii=False) + "\n"


def _commands(name: str, command: Any) -> Iterator[tuple[str, Any]]:
    options = [param for param in command.params if param.param_type_name == "option"]
    yield (
        name,
        {
            "about": command.short_help or (command.help or "").partition("\n")[0],
            "options": {**{_name(param): _option(name, param) for param in options}, **_help()},
            "arguments": [_kind(name, param.name) for param in command.params if param.param_type_name == "argument"],
        },
    )
    for below, one in getattr(command, "commands", {}).items():
        if not one.hidden:
            yield from _commands(f"{name} {below}".strip(), one)


def _help() -> dict[str, Any]:
    return {"--help": {"also": ["-h"], "about": "Show the help.", "value": "", "repeated": False}}


def _name(param: Any) -> str:
    return next(name for name in (*param.opts, *param.secondary_opts) if name.startswith("--"))


def _option(command: str, param: Any) -> dict[str, Any]:
    name = _name(param)
    return {
        "also": [other for other in (*param.opts, *param.secondary_opts) if other != name],
        "about": (param.help or "").partition("\n")[0],
        "value": "" if param.is_flag else _kind(command, name),
        "repeated": param.multiple,
    }


def _kind(command: str, name: str) -> str:
    return KINDS.get(f"{command} {name}") or KINDS.get(name) or "none"


def _setting(setting: Setting) -> dict[str, Any]:
    """Return the meaning of a setting, and its values: all of them, or those that the meaning has in quotes."""
    words = inspect.getclosurevars(setting.parse).nonlocals.get("words")
    values = ("True", "False") if setting.parse is flag else words or re.findall(r'"([^"]+)"', setting.doc)
    return {"about": setting.doc, "values": list(values)}


if __name__ == "__main__":
    PATH.write_text(text(), encoding="utf-8")
