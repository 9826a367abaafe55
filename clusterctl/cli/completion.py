"""The values that a shell offers at Tab: words of closed sets, settings, and the names in `seen.py`.

Typer calls these functions with what is typed, and keeps what begins with it. They reach no node and run no conf.py.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from clusterctl.cli.seen import SeenFile, SeenNames
from clusterctl.templates import TEMPLATES

if TYPE_CHECKING:
    from clusterctl.config.declarations import Setting

ASKS = "_CLUSTERCTL_COMPLETE"  # the variable with which typer's scripts ask
SHELLS = ("bash", "zsh", "fish", "powershell")
Values = list[tuple[str, str]]
#: No shell gives these characters a meaning, wherever typer's scripts insert or evaluate them; nor those of `ABOUT`.
SAFE = re.compile(r"\w[\w.,:/@+=-]*")
ABOUT = re.compile(r"[\w.,:/@+= -]*")


def one_of(*words: str) -> Callable[[], list[str]]:
    return lambda: list(words)


def templates() -> Values:
    return [(name, template.summary) for name, template in TEMPLATES.items()]


def engines() -> list[str]:
    return next(list(one.examples) for one in _choosable() if one.name == "ENGINE")


def settings(incomplete: str) -> Values:
    """Return settings; once only one can be meant, it with each of its values, or of the examples in its meaning."""
    name, equals, _ = incomplete.partition("=")
    meant = [one for one in _choosable() if one.name.startswith(name)]
    if not equals and len(meant) > 1:
        return [(f"{one.name}=", one.doc) for one in meant]
    named = [one for one in meant if one.name == name or not equals]
    return _safe((f"{one.name}={value}", "") for one in named for value in one.examples or ("",))


def _choosable() -> list[Setting]:
    from clusterctl.config.loader import choosable

    return choosable()


def jobs(ctx: typer.Context) -> Values:
    """Return the jobs, newest first, and the names of runs."""
    names = _seen(ctx)
    return _safe([*_jobs(names), *_run_names(names)])


def runs(ctx: typer.Context, incomplete: str) -> Values:
    """Return what `jobs` does, and the runs of the job that is typed with a slash."""
    names = _seen(ctx)
    job = incomplete.partition("/")[0] if "/" in incomplete else ""
    numbers = names.jobs.get(job, {"runs": {}})["runs"]
    return _safe([*((f"{job}/{number}", name) for number, name in numbers.items()), *_jobs(names), *_run_names(names)])


def run_names(ctx: typer.Context) -> Values:
    return _safe(_run_names(_seen(ctx)))


def run_numbers(ctx: typer.Context) -> Values:
    return _of_job(ctx, "runs")


def tags(ctx: typer.Context) -> Values:
    return _of_job(ctx, "tags")


def fake_nodes(ctx: typer.Context) -> Values:
    names = _seen(ctx, f"{ctx.params.get('directory')}/conf.py")
    return _safe((node["label"], node["host"]) for node in names.nodes)


def nodes(ctx: typer.Context, incomplete: str) -> Values:
    """Return sets of nodes: after what is typed up to the last comma, one more node, host, name or tag."""
    before = incomplete[: incomplete.rfind(",") + 1]
    names = _seen(ctx)
    found = {tag: "tag" for node in names.nodes for tag in node["tags"]}
    for node in names.nodes:
        found.setdefault(node["label"], node["host"])
    for node in names.nodes:
        for name in dict.fromkeys((node["name"], node["host"])):
            found[name] = "several nodes" if name in found else node["label"]
    found["failed@last"] = "the nodes on which the last command failed"
    given = before.split(",")
    return _safe((before + value, about) for value, about in found.items() if value and value not in given)


def _seen(ctx: typer.Context, otherwise: str = "") -> SeenNames:
    """Return the names of the conf.py that the command line means; of `otherwise` if that does not exist."""
    from clusterctl.config.caches import cache_directory

    given = ctx.params.get("conf") or ctx.find_root().params.get("conf") or os.environ.get("CLUSTERCTL_CONF")
    conf = Path(given or "conf.py").expanduser()
    return SeenFile(cache_directory(os.environ), otherwise if otherwise and not conf.exists() else conf).read()


def _safe(values: Iterable[tuple[str, str]]) -> Values:
    """Return the values that need no quotes, without a description that could mean something to a shell."""
    return [(value, about if ABOUT.fullmatch(about) else "") for value, about in values if SAFE.fullmatch(value)]


def _jobs(names: SeenNames) -> Iterator[tuple[str, str]]:
    for job, about in names.newest_first():
        named = [name for name in about["runs"].values() if name]
        yield job, ", ".join(filter(None, [*named[-1:], about["state"]]))


def _run_names(names: SeenNames) -> Iterator[tuple[str, str]]:
    """Yield the names of runs, each once, with the job that has the newest of them."""
    seen = set()
    for job, about in names.newest_first():
        for name in reversed(about["runs"].values()):
            if name and name not in seen:
                seen.add(name)
                yield name, f"a run of {job}"


def _of_job(ctx: typer.Context, what: str) -> Values:
    """Return what is known of the job that the line names; of all jobs if it names none that is known."""
    given: list[Any] = [ctx.params.get(name) for name in ("load", "job_workspace", "workspace_or_job", "job")]
    ids = {str(word).partition("/")[0] for word in given if word}
    every = _seen(ctx).newest_first()
    chosen = [one for one in every if one[0] in ids or not ids.isdisjoint(one[1]["runs"].values())] or every
    found: dict[str, str] = {}
    for job, about in chosen:
        for value in about[what]:
            found.setdefault(value, f"of {job}")
    return _safe(found.items())
