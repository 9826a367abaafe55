"""The working directory of a trainer that runs away from its shards."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from clusterctl.agent.node.content import Row, lists_of, stamp_of, write_lists
from clusterctl.agent.node.shard_view import make_view, trainers_with_copies
from clusterctl.common.paths import JobPaths, RunPaths
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


def test_without_hard_links_it_has_symbolic_ones(run: RunPaths, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*paths: object) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "link", refused)
    view = make_view(run, 1, ["part-*"])
    assert (view / "data/part-00001").is_symlink()
    assert (view / "data/part-00001").read_text() == "1"
