"""Commands in hints, with the `--conf` of the call that gives the hint: they work when pasted."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from typing import Any

from clusterctl.errors import ClusterctlError

#: The commands that read conf.py. All others ignore `--conf`.
READ_CONF = (
    *("trust", "check", "setup", "dispatch", "start", "keep", "submit", "status", "jobs", "logs", "why", "stop"),
    *("save", "collect", "exec", "prune", "report", "diff", "export", "metrics", "task"),
)
COMMAND = re.compile(rf"(?<![\w./-])clusterctl(?=\s+(?:{'|'.join(READ_CONF)})(?![\w-]))")
HINTS = ("hint", "advice")  # the fields of JSON documents that hold hints


def with_conf(text: str, conf: str | None) -> str:
    """Return a text of ours in which every command that reads conf.py has `--conf`; unchanged if `conf` is None."""
    return text if conf is None else COMMAND.sub(lambda match: f"{match[0]} --conf {shlex.quote(conf)}", text)


def message_with_conf(error: ClusterctlError, message: str, conf: str | None) -> str:
    """Return a message of `error`. It may quote programs: only the hints of single nodes in it are changed."""
    nodes = error.details.get("nodes")
    for one in nodes if isinstance(nodes, list) else ():
        hint = one.get("hint") if isinstance(one, Mapping) else None
        if isinstance(hint, str):
            message = message.replace(hint, with_conf(hint, conf))
    return message


def hints_with_conf(value: Any, conf: str | None) -> Any:
    """Return a JSON value with `--conf` in all its hints, however deep; all other text is unchanged."""
    if conf is None or not isinstance(value, Mapping | list | tuple):
        return value
    if isinstance(value, Mapping):
        return {
            name: with_conf(item, conf) if name in HINTS and isinstance(item, str) else hints_with_conf(item, conf)
            for name, item in value.items()
        }
    return [hints_with_conf(item, conf) for item in value]
