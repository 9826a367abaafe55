"""The working directory of a trainer that runs away from its shards."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from clusterctl.agent.node import shard_view
from clusterctl.agent.node.content import Row, lists_of, stamp_of, write_lists
from clusterctl.agent.node.shard_view import make_view, trainers_with_copies
from clusterctl.agent.supervisor.trainer_in_view import command_before
from clusterctl.common.paths import META, JobPaths, RunPaths, views_dir
from clusterctl.common.safe_json import dumps
from clusterctl.common.shards import copy_of
from clusterctl.common.tree import FILE, Entry

FILES = {
    "train.py": "program",
    "data/words": "all",
    "data/part-00000": "0",
    "data/part-00002": "2",
    "lib/deep/module.py": "code",
    copy_of("data/part-00001", 1): "1",
    copy_of("more/part-00003", 1): "3",
    copy_of("data/part-00005", 5): "5",
}


@pytest.fixture
def run(tmp_path: Path) -> RunPaths:
    job = JobPaths(tmp_path / "JOB20261121-081530")
    rows = []
    for path, text in FILES.items():
        file = job.dir / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        rows.append(Row(Entry(path, FILE, 0o644, 0, len(text), "0"), stamp_of(file.stat())))
    write_lists(job.dir, "tree", lists_of(rows, dumps([row.entry for row in rows])))
    (job.dir / "data/first").symlink_to("part-00001")
    job.output.mkdir()
    (job.dir / "made-by-a-program.txt").write_text("since")
    return job.run("0001")


def files_in(directory: Path) -> dict[str, str]:
    """Return the files that a program finds, with their texts; it follows links."""
    found = [Path(top, name) for top, _, names in os.walk(directory, followlinks=True) for name in names]
    return {str(path.relative_to(directory)): path.read_text() for path in found}


def test_it_has_the_trainers_own_shards_nobody_elses_and_all_other_files(run: RunPaths) -> None:
    assert trainers_with_copies(run.job) == [1, 5]
    view = make_view(run, 1, ["part-*"])
    assert files_in(view) == {
        "train.py": "program",
        "made-by-a-program.txt": "since",
        "data/words": "all",
        "data/part-00001": "1",
        "data/first": "1",
        "more/part-00003": "3",
        "lib/deep/module.py": "code",
    }
    (view / "output/model").write_text("a result")
    assert (run.job.output / "model").read_text() == "a result"


def test_it_is_made_once_and_whole(run: RunPaths) -> None:
    view = make_view(run, 5, ["data/part*"])
    assert (view / "data/part-00005").read_text() == "5"
    (view / "written by the trainer").touch()
    assert make_view(run, 5, ["data/part*"]) == view
    assert (view / "written by the trainer").exists()
    view.rename(view.with_name("trainer5.new"))  # as if the node had been switched off before the end
    assert not (make_view(run, 5, ["data/part*"]) / "written by the trainer").exists()


def test_a_program_that_looks_beside_itself_stays_in_it_and_no_file_of_the_job_is_touched(run: RunPaths) -> None:
    stamps = {path: stamp_of(path.stat()) for path in run.job.dir.rglob("*") if path.is_file()}
    view = make_view(run, 1, ["part-*"])
    module = (view / "lib/deep/module.py").resolve()
    assert (module.parents[2] / "data/part-00001").read_text() == "1"
    assert sorted(path.name for path in (view / "lib/deep/../../data").iterdir()) == ["first", "part-00001", "words"]
    module.write_text("changed")
    assert stamps == {path: stamp_of(path.stat()) for path in stamps}


def test_larger_files_are_links(run: RunPaths, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard_view, "COPIED_BYTES", 8)
    view = make_view(run, 1, ["part-*"])
    linked = {path.name for path in view.rglob("*") if path.is_symlink()}
    assert linked == {"made-by-a-program.txt", "train.py", "first", "part-00001", "part-00003", "output"}


@pytest.mark.parametrize("lost", [copy_of("data/part-00001", 1), f"{META}/manifest"])
def test_what_is_missing_is_an_error_and_no_other_data(run: RunPaths, lost: str) -> None:
    (run.job.dir / lost).unlink()
    with pytest.raises(FileNotFoundError, match=r"data/part-00001 of trainer 1 is missing|the list of files"):
        make_view(run, 1, ["part-*"])
    assert not (views_dir(run.job.dir.parent) / run.job.dir.name / "0001/trainer1").exists()


def test_a_trainer_begins_in_it_or_says_in_its_log_why_it_cannot(run: RunPaths) -> None:
    def begin(*command: str) -> subprocess.CompletedProcess[str]:
        before = command_before(run, 1, ["part-*", "t*"])
        return subprocess.run([*before, *command], cwd=run.job.dir, capture_output=True, text=True, check=False)

    assert begin("ls", "data").stdout.split() == ["first", "part-00001", "words"]
    assert "trainer 1 cannot begin in a directory with its shards: " in begin("no such program").stderr
