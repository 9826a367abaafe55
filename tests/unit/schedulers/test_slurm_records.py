"""The records of submitted jobs in a shared ROOT_DIR."""

from __future__ import annotations

from pathlib import Path

import pytest

from clusterctl.errors import RefusedError
from clusterctl.schedulers.slurm.records import Allocation, JobNode, Records, SubmissionRecord

NODES = (JobNode("n1", 2, "10.0.0.1"), JobNode("n2"))


@pytest.fixture
def record(tmp_path: Path) -> SubmissionRecord:
    made = Records(str(tmp_path)).new({"conf": "conf.py"})
    made.submitted("12", str(tmp_path / "output"))
    return made


@pytest.mark.parametrize(
    ("root_dir", "root"),
    [("/a/b", "/a/b"), ("/a/b/", "/a/b"), ("/a/{node}/b", "/a"), ("/a/b/n-{node}", "/a/b"), ("/{node}", "/")],
)
def test_what_the_nodes_share_is_above_their_ids(root_dir: str, root: str) -> None:
    assert str(Records(root_dir).root) == root


def test_a_record_is_found_by_the_id_of_its_job(record: SubmissionRecord, tmp_path: Path) -> None:
    records = Records(str(tmp_path))
    found = records.find("12")
    assert found is not None
    assert (found.directory, found.id, found.output) == (record.directory, "12", tmp_path / "output")
    assert records.find("13") is None


def test_a_record_before_its_job_is_known_is_of_no_job(tmp_path: Path) -> None:
    records = Records(str(tmp_path))
    assert records.last() is None
    records.new({})
    assert records.last() is None


def test_the_last_one_is_that_submitted_last_not_that_of_the_highest_id(
    record: SubmissionRecord, tmp_path: Path
) -> None:
    records = Records(str(tmp_path))
    records.new({}).submitted("7", "")
    last = records.last()
    assert last is not None
    assert last.id == "7"


def test_a_later_job_of_the_same_id_takes_its_place(record: SubmissionRecord, tmp_path: Path) -> None:
    records = Records(str(tmp_path))
    later = records.new({})
    later.submitted("12", "")
    found = records.find("12")
    assert found is not None
    assert found.directory == later.directory


def test_the_nodes_of_an_allocation_are_kept_with_the_place_where_its_output_begins(
    record: SubmissionRecord, tmp_path: Path
) -> None:
    assert record.allocation() is None
    record.save_allocation(0, NODES)
    assert record.allocation() == Allocation(0, NODES, 0)
    (tmp_path / "output").write_text("first\n")
    record.save_allocation(0, NODES[:1])
    assert record.allocation() == Allocation(0, NODES[:1], 0)
    record.save_allocation(1, NODES)
    assert record.allocation() == Allocation(1, NODES, 6)
    (tmp_path / "output").write_text("first\nsecond\n")
    assert record.words() == "second\n"


def test_a_damaged_record_is_as_if_it_were_not_there(record: SubmissionRecord) -> None:
    for name in ("nodes.json", "end.json", "submission.json"):
        (record.directory / name).write_text('{"nodes": 3}')
    assert (record.allocation(), record.output, record.words(), record.refusal()) == (None, None, "", None)
    (record.directory / "nodes.json").write_text("[")
    assert record.allocation() is None


def test_what_others_may_have_written_does_not_count(record: SubmissionRecord, tmp_path: Path) -> None:
    records = Records(str(tmp_path))
    record.directory.chmod(0o777)
    assert records.find("12") is None
    record.directory.parent.chmod(0o777)
    assert records.last() is None
    with pytest.raises(RefusedError, match="others can write to it"):
        records.new({})
