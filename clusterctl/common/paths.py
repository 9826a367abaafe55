"""Every path on a node, in one place.

ROOT_DIR/
  .clusterctl/lib/DIGEST/        agent and runtime, content-addressed
  .clusterctl/venvs/DIGEST/      environments that `setup` made; venvs/for/ maps requirements to them
  .clusterctl/wheels/DIGEST/     the wheels they were made from
  .clusterctl/uv/                uvs that `setup` sent, by their wheel's DIGEST, and the cache of uv
  .clusterctl/interpreter.json   the versions in the interpreter of the newest start
  .clusterctl/views/JOB/RUN/     working directories of trainers that run away from their shards
  .clusterctl/incoming/NONCE/    a dispatch in progress, renamed to ROOT_DIR/JOB when it is verified
  JOB/                           the job directory: the user's files, nodefile, log/, output/; or under another name a
                                 directory that was deployed by hand, once `start --adopt` has recorded it
    .clusterctl/job.json         the dispatch; `manifest` and `entries` list its files, `seal` shows that none was
                                 touched
    .clusterctl/shards/RANK/     copies of the shards of a trainer of another node (`common.shards`)
    .clusterctl/lock             locked while a run is alive
    .clusterctl/runs/0001/       spec.json, events.jsonl, state.json, keys/, checkpoints/; older runs' log/, output/;
                                 copies/TAG/ has pieces of other nodes, and the manifest of each complete save;
                                 peers.json the piece servers of all nodes; nodes.json for programs of ENGINE none and
                                 mpi; stop-reason.json if `start` stopped the run because it could not start everywhere
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

from clusterctl.common import seal
from clusterctl.common.files import read_json

PACKAGE_ROOT = str(Path(__file__).absolute().parents[2])  # for sys.path
ENTRY = f"{PACKAGE_ROOT}/clusterctl/agent/entry.py"  # /proc is searched for its end: do not move it
META, RESERVED = seal.META, seal.RESERVED
MOST_NAME_CHARS = 100
MOST_LABEL_CHARS = 64
OF_RANKS = "clusterctl-jobs"  # below the directory that the ranks of an mpirun share, often a workspace: the ROOT_DIRs
LOG_STEMS = {"pserver": "server", "trainer": "train", "scheduler": "scheduler"}


def expand(path: str) -> Path:
    """Return the absolute path on this node; a leading `~` is this account's home."""
    return Path(os.path.abspath(os.path.expanduser(path)))  # noqa: PTH100, PTH111 - resolve() follows links


def expand_program(program: str) -> str:
    """Expand a leading `~` in the program of a command. A name without a slash is still searched for in PATH."""
    return os.path.expanduser(program)  # noqa: PTH111 - Path would remove a leading `./`


def incoming_dir(root: Path) -> Path:
    return root / META / "incoming"


def views_dir(root: Path) -> Path:
    return root / META / "views"


def interpreter_record(root: Path) -> Path:
    return root / META / "interpreter.json"


def is_job_id(name: str) -> bool:
    """Return True if it is JOB, a date, a time, and perhaps a suffix: `JOB20261121-081530-2`."""
    numbers = name[3:].split("-")
    plain = name.startswith("JOB") and name.isascii() and all(number.isdigit() for number in numbers)
    return plain and [len(number) for number in numbers[:2]] == [8, 6] and len(numbers) < 4


def is_job_name(name: str) -> bool:
    """Return True for a name that a job may have: an id, or another plain name if it was deployed by hand."""
    plain = name.isascii() and all(char.isalnum() or char in "._-" for char in name)
    return plain and 0 < len(name) <= MOST_NAME_CHARS and name[0] not in "._-"


def is_label(text: str) -> bool:
    """Return True for a name that a run may be given: plain, and never taken for a job id, an option or a path."""
    plain = text.isascii() and all(char.isalnum() or char in "._-=+" for char in text)
    is_prefix = text.startswith("JOB") and all(char.isdigit() or char == "-" for char in text[3:])
    return plain and 0 < len(text) <= MOST_LABEL_CHARS and text[0] not in ".-" and not is_prefix


def job_key(job: str) -> tuple[str, int]:
    """Return a key that sorts job ids by time, then by suffix. Other names come before all ids."""
    if not is_job_id(job):
        return f" {job}", 0
    parts = job.split("-")
    return "-".join(parts[:2]), int(parts[2]) if len(parts) > 2 else 0


def log_stem(role: str, index: int) -> str:
    """Return `train`, `train.1`, `server`...: a log's name without its suffix. `index` counts a role on the node."""
    stem = LOG_STEMS[role]
    return f"{stem}.{index}" if index else stem


class JobPaths:
    """The paths of one job directory."""

    def __init__(self, job_dir: Path) -> None:
        self.dir = job_dir
        self.meta = job_dir / META
        self.record = self.meta / "job.json"
        self.lock = self.meta / "lock"
        self.runs = self.meta / "runs"
        self.nodefile = job_dir / "nodefile"
        self.log = job_dir / "log"
        self.output = job_dir / "output"

    def is_own(self) -> bool:
        """Return True if no other account can have made or changed what is in the directory."""
        return seal.is_own(str(self.dir)) and seal.is_own(str(self.meta))

    def has_record(self) -> bool:
        """Return False also for a directory that this account may not look into."""
        try:
            return self.record.is_file()
        except PermissionError:
            return False

    def run(self, run: str) -> RunPaths:
        return RunPaths(self, run)

    def run_names(self) -> list[str]:
        """Return the names of all runs, in no order."""
        return [p.name for p in self.runs.iterdir() if p.name.isdigit()] if self.runs.is_dir() else []

    def newest_run(self) -> str | None:
        return max(self.run_names(), key=int, default=None)


class RunPaths:
    """The paths of one run of a job."""

    def __init__(self, job: JobPaths, run: str) -> None:
        self.job = job
        self.run = run
        self.dir = job.runs / run
        self.spec = self.dir / "spec.json"
        self.events = self.dir / "events.jsonl"
        self.state = self.dir / "state.json"
        self.nodes = self.dir / "nodes.json"
        self.stop_reason = self.dir / "stop-reason.json"
        self.stop_asked = self.dir / "stop-asked"
        self.checkpoints = self.dir / "checkpoints"
        self.copies = self.dir / "copies"
        self.merging = self.dir / "merging"
        self.peers = self.dir / "peers.json"
        self.keys = self.dir / "keys"
        self.tls = self.keys / "tls.pem"
        self.tls_authority = self.keys / "ca.pem"

    def process_keys(self, name: str) -> Path:
        """Return the file with the CURVE keys of a process, such as `trainer0`."""
        role = name.rstrip("0123456789")
        return self.keys / f"{role}-{name[len(role) :]}.json"

    @property
    def door(self) -> str:
        """The name, in Linux's abstract namespace, of the socket at which the lead's supervisor takes requests."""
        digest = hashlib.sha256(os.fsencode(os.path.realpath(self.dir))).hexdigest()
        return f"\0clusterctl-run-{digest[:32]}"

    @property
    def log(self) -> Path:
        """The directory of the run's logs: in the job directory for the newest run, else beside the run's events."""
        older = self.dir / "log"
        return older if older.is_dir() else self.job.log


def find_jobs(root: Path) -> Iterator[JobPaths]:
    """Yield this account's job directories below `root`, newest first.

    What another account may have put into a shared ROOT_DIR is never among them.
    """
    return (job for job in job_directories(root) if job.is_own() and job.record.is_file())


def job_directories(root: Path) -> Iterator[JobPaths]:
    """Yield every entry below `root` that is named like a dispatched job, newest first, regardless of its owner.

    Then yield this account's directories that were deployed by hand and adopted.
    """
    names = [p.name for p in root.iterdir() if is_job_name(p.name)] if root.is_dir() else []
    for name in sorted(names, key=job_key, reverse=True):
        job = JobPaths(root / name)
        if is_job_id(name) or _is_adopted(job):
            yield job


def _is_adopted(job: JobPaths) -> bool:
    """Return True unless the directory has no record, or is a copy of a job with that job's record."""
    if not job.is_own() or not job.record.is_file():
        return False
    record = read_json(job.record)
    return isinstance(record, dict) and record.get("job") == job.dir.name


def saved_places(job: JobPaths, run: str, tag: str) -> Iterator[Path]:
    """Yield the directories that may have pieces of what `run` saved as `tag`; what they have may be of another save.

    Outputs move beside the events of the run after which they were set aside; copies of other nodes' pieces come last.
    """
    later = sorted((name for name in job.run_names() if int(name) >= int(run)), key=int)
    outputs = [job.output, *(job.run(name).dir / "output" for name in reversed(later))]
    for place in (job.run(run).checkpoints, *outputs, job.run(run).copies):
        directory = place / tag
        if directory.is_dir() and not directory.is_symlink():
            yield directory
