"""The names that commands have reported about the nodes, jobs and runs of a conf.py, kept for completion.

There is one file for each conf.py, which anything may have damaged. Names come from nodes and from conf.py, so what is
read is checked and bounded, and text that a terminal could take for anything but a name is dropped.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zlib import crc32

from clusterctl.common.files import write_atomic
from clusterctl.common.paths import is_job_name, job_key
from clusterctl.common.safe_json import parse

if TYPE_CHECKING:
    from clusterctl.inventory import Inventory

VERSION = 1
MOST_BYTES = 1_000_000
MOST_JOBS = 200
MOST_OF_A_JOB = 100  # runs and tags
MOST_NODES = 2000
MOST_TAGS = 20  # of a node
MOST_CHARS = 200  # of a name
MOST_FILES = 100
LIVE = ("starting", "running")


@dataclass
class SeenNames:
    """`nodes` have `label`, `host`, `name` and `tags`; `jobs`, by id, have `state`, `runs` and `tags`.

    The runs of a job are names by number, its tags are those of its models.
    """

    nodes: list[dict[str, Any]]
    jobs: dict[str, dict[str, Any]]

    def newest_first(self) -> list[tuple[str, dict[str, Any]]]:
        return sorted(self.jobs.items(), key=lambda one: job_key(one[0]), reverse=True)


class SeenFile:
    """The file about one conf.py. A failure to write is not an error, and of two writers at once the last one wins.

    With `of_some` the command works on some nodes only, so that a job which it does not list may be on the others.
    """

    def __init__(self, cache_dir: str | Path, conf: str | Path, *, of_some: bool = False) -> None:
        self._conf = os.path.realpath(conf)
        self.path = Path(cache_dir, "completion", f"{crc32(os.fsencode(self._conf)):08x}.json")
        self._of_some = of_some
        self._job: str | None = None  # of the events of a stream

    def read(self) -> SeenNames:
        """Return what is well-formed: nothing if there is no file, or it is damaged or about another conf.py."""
        try:
            with self.path.open("rb") as file:
                data = file.read(MOST_BYTES + 1)
            value = _fields(parse(data, MOST_BYTES))
        except (OSError, ValueError):
            value = {}
        if value.get("v") != VERSION or value.get("conf") != self._conf:
            value = {}
        return _checked(value.get("nodes"), value.get("jobs"))

    def nodes(self, inventory: Inventory) -> None:
        """Replace the nodes."""
        nodes = [
            {"label": node.label, "host": node.host.hostname, "name": node.host.name or "", "tags": list(node.tags)}
            for node in inventory.nodes
        ]

        def change(names: SeenNames) -> None:
            names.nodes[:] = nodes

        self._update(change)

    def document(self, value: Mapping[str, Any]) -> None:
        """Learn from the JSON document of a command, or from an event of its stream."""
        several = value.get("jobs")
        if isinstance(several, list):
            is_whole = not self._of_some and "error" not in value
            self._update(lambda names: _take_all(names, value, is_whole=is_whole))
        elif value.get("event") == "saved" and value.get("complete") and not value.get("checkpoint") and self._job:
            self._update(lambda names: _take(names, {"job": self._job, "model": True, "tag": value.get("tag")}))
        else:
            details = _fields(_fields(value.get("error")).get("details"))  # of a run that failed
            about = value if "job" in value else details
            if _names_a_job(about):
                self._job = about["job"]
                self._update(lambda names: _take(names, about))

    def _update(self, change: Callable[[SeenNames], None]) -> None:
        before, names = self.read(), self.read()
        change(names)
        names = _checked(names.nodes, dict(sorted(names.jobs.items(), key=lambda one: job_key(one[0]))))
        if names == before:
            return
        with contextlib.suppress(OSError, UnicodeError):
            self.path.parent.mkdir(0o700, parents=True, exist_ok=True)
            if not self.path.exists():
                _make_room(self.path.parent)
            write_atomic(self.path, self._encoded(names), durable=False)

    def _encoded(self, names: SeenNames) -> bytes:
        """Return the content of the file: if all names are long, only of the first nodes and the newest jobs."""
        nodes, jobs = names.nodes, list(names.jobs.items())
        while True:
            value = {"v": VERSION, "conf": self._conf, "nodes": nodes, "jobs": dict(jobs)}
            data = json.dumps(value, ensure_ascii=False).encode()
            if len(data) <= MOST_BYTES:
                return data
            nodes, jobs = nodes[: len(nodes) // 2], jobs[(len(jobs) + 1) // 2 :]


def _make_room(directory: Path) -> None:
    """Remove the oldest files, so that clusters that come and go do not fill the cache."""
    files = sorted(directory.glob("*.json"), key=lambda path: path.stat().st_mtime)
    for path in files[: max(0, len(files) - MOST_FILES + 1)]:
        path.unlink(missing_ok=True)


def _names_a_job(value: Mapping[str, Any]) -> bool:
    """Return True for what a command says about a job that is on the nodes; a plan may name one that is not."""
    job = value.get("job")
    return isinstance(job, str) and is_job_name(job) and ("run" in value or "nodes" in value)


def _take_all(names: SeenNames, value: Mapping[str, Any], *, is_whole: bool) -> None:
    """Take the list of `jobs`, which is complete if it is of all nodes, of `status`, or of `prune`."""
    jobs = [one for one in map(_fields, value["jobs"]) if isinstance(one.get("job"), str) and is_job_name(one["job"])]
    if "removed" in value:
        for job in jobs if value["removed"] and is_whole else ():
            if not job.get("keep"):
                names.jobs.pop(job["job"], None)
        return
    if is_whole and all(isinstance(job.get("runs"), list) for job in jobs):
        for gone in names.jobs.keys() - {job["job"] for job in jobs}:
            del names.jobs[gone]
    for job in jobs:
        _take(names, job)


def _take(names: SeenNames, value: Mapping[str, Any]) -> None:
    """Take what a document says about one job."""
    job = names.jobs.setdefault(value["job"], {"state": "", "runs": {}, "tags": []})
    if isinstance(value.get("state"), str):
        job["state"] = value["state"]
    elif "survivors" in value and "error" not in value and job["state"] in LIVE:
        job["state"] = "stopped"
    listed = value.get("runs")
    for run in map(_fields, listed if isinstance(listed, list) else [value]):
        number = run.get("run")
        if isinstance(number, str) and number.isascii() and number.isdigit():
            name = run.get("name") or job["runs"].get(str(int(number)), "")
            job["runs"][str(int(number))] = name if isinstance(name, str) else ""
    if value.get("model") and isinstance(value.get("tag"), str):
        job["tags"] = [*(tag for tag in job["tags"] if tag != value["tag"]), value["tag"]]


def _checked(nodes: object, jobs: object) -> SeenNames:
    """Return what is well-formed, within the limits. Of the jobs, and of what belongs to each, the last ones stay."""
    return SeenNames(
        [one for node in _items(nodes)[:MOST_NODES] if (one := _node(_fields(node)))["label"]],
        {job: _job(_fields(about)) for job, about in list(_fields(jobs).items())[-MOST_JOBS:] if _name(job)},
    )


def _node(value: Mapping[str, Any]) -> dict[str, Any]:
    names = {key: _name(value.get(key)) for key in ("label", "host", "name")}
    return {**names, "tags": list(filter(_name, _items(value.get("tags"))[:MOST_TAGS]))}


def _job(value: Mapping[str, Any]) -> dict[str, Any]:
    runs = {number: name for number, name in _fields(value.get("runs")).items() if _is_number(number)}
    return {
        "state": _name(value.get("state")),
        "runs": {number: _name(runs[number]) for number in sorted(runs, key=int)[-MOST_OF_A_JOB:]},
        "tags": list(filter(_name, _items(value.get("tags"))[-MOST_OF_A_JOB:])),
    }


def _name(value: object) -> str:
    """Return a text that is short, visible and not an option; "" for anything else."""
    is_name = isinstance(value, str) and len(value) <= MOST_CHARS and value.isprintable() and value[:1] != "-"
    return str(value) if is_name else ""


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 10


def _fields(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _items(value: object) -> list[Any]:
    return value if isinstance(value, list) else []
