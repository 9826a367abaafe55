"""What a command has seen of the nodes, jobs and runs of a conf.py, kept for completion."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clusterctl.cli.completion.known import MOST_BYTES, VERSION, Known, checked, fields_of, path_of, read
from clusterctl.common.files import write_atomic
from clusterctl.common.paths import is_job_name, job_key
from clusterctl.common.safe_json import dumps

if TYPE_CHECKING:
    from clusterctl.inventory import Inventory

MOST_FILES = 100
LIVE = ("starting", "running")


class Seen:
    """The file about one conf.py. A failure to write is not an error, and of two writers at once the last one wins.

    With `of_some` the command works on some nodes only, so that a job which it does not list may be on the others.
    """

    def __init__(self, cache_dir: Path, conf: Path, *, of_some: bool = False) -> None:
        self._cache_dir = str(cache_dir)
        self._conf = os.path.realpath(conf)
        self._of_some = of_some
        self._job: str | None = None  # of the events of a stream

    def nodes(self, inventory: Inventory) -> None:
        """Replace the nodes."""
        nodes = [
            {"label": node.label, "host": node.host.hostname, "name": node.host.name or "", "tags": list(node.tags)}
            for node in inventory.nodes
        ]

        def change(known: Known) -> None:
            known.nodes[:] = nodes

        self._update(change)

    def document(self, value: Mapping[str, Any]) -> None:
        """Learn from the JSON document of a command, or from an event of its stream."""
        several = value.get("jobs")
        if isinstance(several, list):
            is_whole = not self._of_some and "error" not in value
            self._update(lambda known: _take_all(known, value, is_whole=is_whole))
        elif value.get("event") == "saved" and value.get("complete") and not value.get("checkpoint") and self._job:
            self._update(lambda known: _take(known, {"job": self._job, "model": True, "tag": value.get("tag")}))
        else:
            details = fields_of(fields_of(value.get("error")).get("details"))  # of a run that failed
            about = value if "job" in value else details
            if _names_a_job(about):
                self._job = about["job"]
                self._update(lambda known: _take(known, about))

    def _update(self, change: Callable[[Known], None]) -> None:
        before = read(self._cache_dir, self._conf)
        known = read(self._cache_dir, self._conf)
        change(known)
        known = checked(known.nodes, dict(sorted(known.jobs.items(), key=lambda one: job_key(one[0]))))
        if (known.nodes, known.jobs) == (before.nodes, before.jobs):
            return
        path = Path(path_of(self._cache_dir, self._conf))
        with contextlib.suppress(OSError, UnicodeError):
            path.parent.mkdir(0o700, parents=True, exist_ok=True)
            if not path.exists():
                _make_room(path.parent)
            write_atomic(path, self._encoded(known), durable=False)

    def _encoded(self, known: Known) -> bytes:
        """Return the content of the file: if all names are long, only of the first nodes and the newest jobs."""
        nodes, jobs = known.nodes, list(known.jobs.items())
        while True:
            data = dumps({"v": VERSION, "conf": self._conf, "nodes": nodes, "jobs": dict(jobs)})
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


def _take_all(known: Known, value: Mapping[str, Any], *, is_whole: bool) -> None:
    """Take the list of `jobs`, which is complete if it is of all nodes, of `status`, or of `prune`."""
    jobs = [one for one in map(fields_of, value["jobs"]) if isinstance(one.get("job"), str) and is_job_name(one["job"])]
    if "removed" in value:
        for job in jobs if value["removed"] and is_whole else ():
            if not job.get("keep"):
                known.jobs.pop(job["job"], None)
        return
    if is_whole and all(isinstance(job.get("runs"), list) for job in jobs):
        for gone in known.jobs.keys() - {job["job"] for job in jobs}:
            del known.jobs[gone]
    for job in jobs:
        _take(known, job)


def _take(known: Known, value: Mapping[str, Any]) -> None:
    """Take what a document says about one job."""
    job = known.jobs.setdefault(value["job"], {"state": "", "runs": {}, "tags": []})
    if isinstance(value.get("state"), str):
        job["state"] = value["state"]
    elif "survivors" in value and "error" not in value and job["state"] in LIVE:
        job["state"] = "stopped"
    listed = value.get("runs")
    for run in map(fields_of, listed if isinstance(listed, list) else [value]):
        number = run.get("run")
        if isinstance(number, str) and number.isascii() and number.isdigit():
            name = run.get("name") or job["runs"].get(str(int(number)), "")
            job["runs"][str(int(number))] = name if isinstance(name, str) else ""
    if value.get("model") and isinstance(value.get("tag"), str):
        job["tags"] = [*(tag for tag in job["tags"] if tag != value["tag"]), value["tag"]]
