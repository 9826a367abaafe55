"""What is kept about submitted jobs in the ROOT_DIR that their nodes share with the machine that submits.

ROOT_DIR/.clusterctl/slurm/
  20261121-081530-123456789/  one submission, made before Slurm knows it; the job has to see it on all its nodes
    submission.json           what was submitted
    nodes.json                the nodes of the job's newest allocation, written there
    refused                   why the job started nothing
    end.json                  how it ended, written by the first command that learns of it: Slurm forgets
  12                          a link to the submission that became job 12, the newest one of this id
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clusterctl.common.files import read_json, write_json
from clusterctl.common.seal import META, is_own
from clusterctl.errors import ConfigError, RefusedError

MOST_WORDS = 1 << 16  # bytes at the end of a job's output, which may name the reason
MOST_TEXT = 2000
SHARED = "set ROOT_DIR to a directory that this machine shares with the nodes, such as one on NFS or Lustre"


@dataclass(frozen=True)
class JobNode:
    """A node of a job: its name, its trainers if Slurm decides on them, and its address for the other nodes."""

    name: str
    trainers: int | None = None
    address: str | None = None


@dataclass(frozen=True)
class Allocation:
    """The nodes of a job in node order, since its `restarts`-th restart. Its output begins at byte `output_from`."""

    restarts: int
    nodes: tuple[JobNode, ...]
    output_from: int = 0


class SubmissionRecord:
    """The record of one submission. `id` is that of its job, "" before Slurm has taken it.

    A file that is missing or damaged counts as not written.
    """

    def __init__(self, directory: Path, id_: str = "") -> None:
        self.directory = directory
        self.id = id_

    @property
    def output(self) -> Path | None:
        """The file for what the job prints."""
        path = _read(self.directory / "submission.json").get("output")
        return Path(path) if isinstance(path, str) else None

    def submitted(self, job: str, output: str) -> None:
        """Make this the record of a job. The job's script does the same, if it is earlier. Raises OSError."""
        self.id = job
        known = _read(self.directory / "submission.json")
        write_json(self.directory / "submission.json", {**known, "id": job, "output": output})
        beside = self.directory.with_name(f".{job}.{self.directory.name}")
        beside.symlink_to(self.directory.name)
        beside.replace(self.directory.with_name(job))

    def forget(self) -> None:
        """Remove the record of what Slurm did not take."""
        shutil.rmtree(self.directory, ignore_errors=True)

    def allocation(self) -> Allocation | None:
        """Return the newest allocation of the job; None if it has not asked for its nodes yet."""
        known = _read(self.directory / "nodes.json")
        with contextlib.suppress(KeyError, TypeError, ValueError):
            nodes = tuple(JobNode(one["name"], one["trainers"], one["address"]) for one in known["nodes"])
            return Allocation(int(known["restarts"]), nodes, int(known["output_from"])) if nodes else None
        return None

    def save_allocation(self, restarts: int, nodes: tuple[JobNode, ...]) -> None:
        """Write the nodes of an allocation unless they are known. Ignores a disk that is full or read-only."""
        known = self.allocation()
        if known is not None and (known.restarts, known.nodes) == (restarts, nodes):
            return
        begins = known.output_from if known is not None and known.restarts == restarts else self._output_bytes()
        allocation = {"restarts": restarts, "output_from": begins, "nodes": [vars(node) for node in nodes]}
        with contextlib.suppress(OSError):
            write_json(self.directory / "nodes.json", allocation)

    def _output_bytes(self) -> int:
        with contextlib.suppress(OSError):
            return self.output.stat().st_size if self.output else 0
        return 0

    def words(self) -> str:
        """Return the end of what the job printed since its last restart; "" if that cannot be read."""
        allocation, output = self.allocation(), self.output
        if output is None:
            return ""
        try:
            with output.open("rb") as f:
                end = f.seek(0, os.SEEK_END)
                f.seek(max(allocation.output_from if allocation else 0, end - MOST_WORDS))
                return f.read(MOST_WORDS).decode(errors="replace")
        except OSError:
            return ""

    def refusal(self) -> str | None:
        """Return why the job started nothing, in its own words; None if they are not known."""
        try:
            return (self.directory / "refused").read_text(errors="replace")[:MOST_TEXT].strip() or None
        except OSError:
            return None

    def end(self) -> Mapping[str, Any]:
        """Return how the job ended, as it was given to `save_end`; empty if that is not known."""
        return _read(self.directory / "end.json")

    def save_end(self, end: Mapping[str, Any]) -> None:
        """Write how the job ended if that is news. Ignores a disk that is full or read-only."""
        if self.end() != end:
            with contextlib.suppress(OSError):
                write_json(self.directory / "end.json", dict(end))


class Records:
    """The records of all submissions with a ROOT_DIR, which may have `{node}` in it and begin with `~`."""

    def __init__(self, root_dir: str) -> None:
        above, of_node, _ = root_dir.partition("{node}")
        self.root = Path((above.rpartition("/")[0] or "/") if of_node else above).expanduser()
        self._directory = self.root / META / "slurm"

    def new(self, submission: Mapping[str, Any]) -> SubmissionRecord:
        """Write a new record.

        Raises ConfigError if there is no place for it, RefusedError if another account can write to that place.
        """
        now = time.time_ns()
        name = f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime(now // 10**9))}-{now % 10**9:09}"
        record = SubmissionRecord(self._directory / name)
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            for directory in (self._directory.parent, self._directory):
                directory.mkdir(mode=0o700, exist_ok=True)
                _check_own(directory)
            record.directory.mkdir(mode=0o700)
            write_json(record.directory / "submission.json", {**submission, "t": now / 1e9})
        except OSError as exc:
            message = f"cannot write to ROOT_DIR {self.root} on this machine: {exc.strerror}"
            raise ConfigError(message, hint=SHARED) from exc
        return record

    def find(self, job: str) -> SubmissionRecord | None:
        """Return the record of a job by its id; None without one."""
        name = self._links().get(job)
        return None if name is None else SubmissionRecord(self._directory / name, job)

    def last(self) -> SubmissionRecord | None:
        """Return the record of the job that was submitted last; None without any."""
        links = self._links()
        job = max(links, key=lambda job: links[job], default=None)
        return None if job is None else SubmissionRecord(self._directory / links[job], job)

    def _links(self) -> dict[str, str]:
        """Return the name of each job's record. What other accounts may have written does not count."""
        if not is_own(str(self._directory)):
            return {}
        links = [path for path in self._directory.iterdir() if path.is_symlink() and not path.name.startswith(".")]
        names = {link.name: link.readlink().name for link in links}
        return {job: name for job, name in names.items() if is_own(str(self._directory / name))}


def _check_own(directory: Path) -> None:
    if not is_own(str(directory)):
        raise RefusedError(
            f"{directory} belongs to another account, or others can write to it",
            hint="set ROOT_DIR to a directory of your own",
        )


def _read(path: Path) -> dict[str, Any]:
    try:
        value = read_json(path)
    except OSError:
        return {}
    return value if isinstance(value, dict) else {}
