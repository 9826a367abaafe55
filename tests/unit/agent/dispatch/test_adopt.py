"""A directory that was deployed by hand becomes a job where it is, on one node."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

import pytest

from clusterctl.agent.dispatch.adopt import adopt as adopt_here
from clusterctl.agent.node.content import is_exact, is_verified, read_manifest
from clusterctl.agent.node.jobs import find_job
from clusterctl.agent.node.runs import list_jobs
from clusterctl.common.errors import AgentError, Gone
from clusterctl.common.files import read_json, write_json
from clusterctl.common.paths import JobPaths, find_jobs, is_job_name
from clusterctl.errors import RefusedError
from unit.agent.nodes import ask

NAME = "JOB20161121081530"  # as the old launcher named it: not one of our ids


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


@pytest.fixture
def job(home: Path) -> JobPaths:
    """A directory as someone copied it to a node."""
    directory = home / "root" / NAME
    (directory / "data").mkdir(parents=True)
    (directory / "train.py").write_text("print(1)\n")
    (directory / "data/part.csv").write_bytes(b"1,2\n")
    (directory / "latest").symlink_to("data/part.csv")
    os.mkfifo(directory / "pipe")
    directory.chmod(0o755)
    return JobPaths(directory)


def adopt(home: Path, *, node: int = 0, nodes: int = 2) -> dict[str, Any]:
    answer: dict[str, Any] = ask(home, {"op": "adopt", "job": NAME, "node": node, "nodes": nodes})
    return answer


def look(job: JobPaths) -> dict[str, tuple[int, int, int]]:
    """Return inode, modification time and mode of everything in a directory that is not ours."""
    found = {}
    for path in job.dir.rglob("*"):
        if path.relative_to(job.dir).parts[0] not in ("log", "output", "nodefile", ".clusterctl"):
            status = path.lstat()
            found[str(path)] = (status.st_ino, status.st_mtime_ns, status.st_mode)
    return found


def test_a_directory_is_recorded_as_a_dispatch_records_a_job_and_nothing_in_it_changes(
    home: Path, job: JobPaths
) -> None:
    before = look(job)
    done = adopt(home)
    assert (done["files"], done["bytes"], done["unrecorded"]) == (2, 13, 1)
    assert look(job) == before
    assert job.nodefile.read_text() == "0\n"
    rows = {row.entry.path: row for row in read_manifest(job.dir) or ()}
    assert list(rows) == ["data", "data/part.csv", "latest", "train.py"]
    assert rows["train.py"].entry.digest == hashlib.sha256(b"print(1)\n").hexdigest()
    assert rows["latest"].entry.target == "data/part.csv"
    assert is_verified(job.meta)
    record = read_json(job.record)
    assert (record["job"], record["node"], record["nodes"], record["adopted"]) == (NAME, 0, 2, True)
    (job.dir / "pipe").unlink()
    assert is_exact(job.dir)
    (job.dir / "train.py").write_text("print(2)\n")
    assert not is_exact(job.dir)


def test_a_directory_that_was_adopted_is_found_by_its_whole_name_and_a_copy_of_it_is_no_job(
    home: Path, job: JobPaths
) -> None:
    root = job.dir.parent
    assert list(find_jobs(root)) == []
    adopt(home)
    (root / "other").mkdir()
    copy = JobPaths(root / "copy")
    copy.meta.mkdir(parents=True, mode=0o700)
    write_json(copy.record, read_json(job.record))
    dispatched = JobPaths(root / "JOB20261121-110054")
    dispatched.meta.mkdir(parents=True, mode=0o700)
    write_json(dispatched.record, {"job": dispatched.dir.name})
    assert [one["job"] for one in list_jobs(root)] == ["JOB20261121-110054", NAME]
    assert find_job(root, NAME).dir == find_job(root, str(job.dir)).dir == job.dir
    assert find_job(root, "JOB2").dir == dispatched.dir
    with pytest.raises(AgentError, match="there is no job"):
        find_job(root, NAME[:-1])


def test_prune_neither_lists_nor_removes_it(home: Path, job: JobPaths) -> None:
    adopt(home)
    assert ask(home, {"op": "prune"})["jobs"] == []
    assert ask(home, {"op": "prune", "remove": {"jobs": [NAME], "content": []}})["kept"] == []
    assert job.record.is_file()


def test_adopting_again_records_the_files_and_the_node_of_now(home: Path, job: JobPaths) -> None:
    adopt(home)
    job.run("0001").dir.mkdir(parents=True)
    (job.log / "train.log").write_text("1\n")
    (job.dir / "more.py").write_text("")
    assert adopt(home, node=1, nodes=3)["files"] == 3
    record = read_json(job.record)
    assert (record["node"], record["nodes"], job.nodefile.read_text()) == (1, 3, "1\n")
    assert (job.log / "train.log").read_text() == "1\n"
    assert job.newest_run() == "0001"


def has_log(job: JobPaths) -> None:
    job.log.mkdir()
    (job.log / "train.log").write_text("of the old launcher\n")


def has_output_link(job: JobPaths) -> None:
    job.output.symlink_to("data")


def has_nodefile(job: JobPaths) -> None:
    job.nodefile.write_text("10.0.0.1\n")


def is_copy(job: JobPaths) -> None:
    job.meta.mkdir(0o700)
    write_json(job.record, {"job": "JOB20261121-110054"})


def is_open(job: JobPaths) -> None:
    job.dir.chmod(0o777)


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (has_log, "already has log"),
        (has_output_link, "already has output"),
        (has_nodefile, "already has nodefile"),
        (is_copy, "is a copy of another job"),
        (is_open, "others can write to it"),
    ],
)
def test_a_directory_that_a_run_would_change_or_that_is_not_safe_is_refused_and_stays_as_it_is(
    home: Path, job: JobPaths, spoil: Any, words: str
) -> None:
    spoil(job)
    before = sorted(job.dir.rglob("*"))
    with pytest.raises(RefusedError, match=words):
        adopt(home)
    assert sorted(job.dir.rglob("*")) == before


class LeavingPeer:
    """A control machine that leaves while files are being hashed."""

    def heartbeat(self) -> None:
        raise Gone


def test_a_directory_is_no_job_until_all_of_it_was_read(home: Path, job: JobPaths) -> None:
    before = sorted(job.dir.rglob("*"))
    with pytest.raises(Gone):
        adopt_here(home / "root", {"job": NAME, "node": 0, "nodes": 1}, LeavingPeer())  # type: ignore[arg-type]
    assert sorted(job.dir.rglob("*")) == before


@pytest.mark.parametrize(
    ("name", "is_one"),
    [
        *((name, True) for name in ("2024.run_1", NAME)),
        *((name, False) for name in ("", "-x", "a/b", "..", "é", "a\n", "a" * 101)),
    ],
)
def test_a_plain_name_can_be_that_of_a_job(name: str, is_one: bool) -> None:
    assert is_job_name(name) is is_one
