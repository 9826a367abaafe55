"""Edits of a job in place: its lists are those that would be made anew, and an interruption does no harm."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from clusterctl.agent.dispatch import in_place
from clusterctl.agent.dispatch.edit import Edit
from clusterctl.agent.node.content import lists_of, read_list, read_manifest, stamp_of, write_lists
from clusterctl.common.paths import META, JobPaths
from clusterctl.common.safe_json import dumps
from clusterctl.common.seal import listing, read_seal
from clusterctl.common.tree import Entry, order
from clusterctl.dispatch import scan
from support.trees import described
from unit.dispatch.test_delta import Place, killed_at

ODD = ("plain", "ü n", 'quo"te', "line\nend", "b\\", os.fsdecode(b"\xff"), "[[", "a.b")


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    made = Place(tmp_path)
    for number, name in enumerate(ODD):
        (made.workspace / f"d{number % 2}").mkdir(exist_ok=True)
        (made.workspace / f"d{number % 2}" / name).write_text(f"{number}")
    (made.workspace / "link").symlink_to("d0")
    yield made
    assert made.cluster.left() == []


def entries_of(place: Place) -> list[Entry]:
    return sorted(scan(place.workspace).entries, key=lambda entry: order(entry.path))


def edit_of(root: Path, job: str, entries: list[Entry]) -> Edit:
    """Return the edit that turns a job into these entries."""
    known = {row.entry.path: row.entry for row in read_manifest(root / job) or ()}
    changes = [entry for entry in entries if known.get(entry.path) != entry]
    return Edit(JobPaths(root / job), listing(str(root / job)), changes)


def restamp(job_dir: Path) -> None:
    """Give the copy of a job the stamps of its own files."""
    rows = [
        row._replace(stamp=row.stamp and stamp_of((job_dir / row.entry.path).lstat()))
        for row in read_manifest(job_dir) or ()
    ]
    write_lists(job_dir, read_seal(str(job_dir))[0], lists_of(rows, read_list(job_dir)[0]))


def assert_lists_are_right(job_dir: Path, entries: list[Entry]) -> None:
    rows = read_manifest(job_dir)
    assert rows is not None
    assert [row.entry for row in rows] == entries
    made = lists_of(rows, dumps(entries))
    assert (job_dir / META / "manifest").read_bytes() == made.manifest
    assert read_list(job_dir) == (made.entries, made.sums)
    assert read_seal(str(job_dir))[1] == made.listing == listing(str(job_dir))


@pytest.mark.parametrize("names", [ODD[:1], ODD])
def test_an_edit_makes_the_same_lists_as_a_new_job(place: Place, names: tuple[str, ...]) -> None:
    place.dispatch()
    for name in names:
        (place.workspace / f"d{ODD.index(name) % 2}" / name).write_text(f"{name!r} is longer than before")
    os.utime(place.workspace / "d0", (1, 1))
    (place.workspace / "d1/ü n").chmod(0o600)
    done = place.dispatch()
    place.assert_same(done)
    for job_dir in place.job_dirs(done):
        assert_lists_are_right(job_dir, entries_of(place))
    assert [outcome.get().bytes_copied for outcome in done.outcomes] == [0, 0]


def test_a_name_that_looks_like_the_end_of_a_row_makes_no_edit(place: Place) -> None:
    (place.workspace / "d0/],[").write_text("x")
    first = place.dispatch()
    root = place.job_dirs(first)[0].parent
    (place.workspace / "d0/plain").write_text("other")
    with pytest.raises(ValueError, match="the rows are ambiguous"):
        edit_of(root, first.job, entries_of(place))
    done = place.dispatch()
    place.assert_same(done)
    assert_lists_are_right(place.job_dirs(done)[0], entries_of(place))


def test_other_changes_are_no_edit(place: Place) -> None:
    first = place.dispatch()
    root = place.job_dirs(first)[0].parent
    others = {
        "a new file": lambda top: (top / "new").write_text("x"),
        "the same bytes elsewhere": lambda top: shutil.copy2(top / "d0/plain", top / "d1/ü n"),
        "the same, with another change": lambda top: (
            shutil.copy2(top / "d0/plain", top / "d1/ü n"),
            (top / "d0/[[").write_text("other"),
        ),
        "another kind": lambda top: ((top / "d0/plain").unlink(), (top / "d0/plain").mkdir()),
        "a link": lambda top: ((top / "link").unlink(), (top / "link").symlink_to("d1")),
    }
    kept = shutil.copytree(place.workspace, place.workspace.with_name("kept"), symlinks=True)
    for change in others.values():
        shutil.rmtree(place.workspace)
        shutil.copytree(kept, place.workspace, symlinks=True)
        change(place.workspace)
        with pytest.raises(ValueError, match=r"not found|elsewhere|something else|not a row"):
            edit_of(root, first.job, entries_of(place))
    place.assert_same(place.dispatch())


def test_a_job_whose_lists_are_damaged_gets_right_ones(place: Place) -> None:
    first = place.dispatch()
    for job_dir in place.job_dirs(first):
        damaged = job_dir / META / "manifest"
        damaged.write_bytes(damaged.read_bytes().replace(b'"plain"', b'"other"')[:-50])
    (place.workspace / "d1/ü n").write_text("other")
    done = place.dispatch()
    place.assert_same(done)
    for job_dir in place.job_dirs(done):
        assert_lists_are_right(job_dir, entries_of(place))


def test_an_edit_interrupted_anywhere_is_completed_by_recovery(place: Place, tmp_path: Path) -> None:
    (place.workspace / "d0").chmod(0o500)
    done = place.dispatch()
    before = place.job_dirs(done)[0].parent
    (place.workspace / "d0").chmod(0o700)
    (place.workspace / "d0/plain").write_text("anew")
    (place.workspace / "d1/ü n").chmod(0o600)
    (place.workspace / "d0").chmod(0o500)
    entries = entries_of(place)
    for cut in range(1, 60, 2):
        root = Path(shutil.copytree(before, tmp_path / str(cut), symlinks=True))
        staging = root / ".clusterctl/incoming/staged"
        (staging / "new").mkdir(parents=True)
        restamp(root / done.job)
        edit = edit_of(root, done.job, entries)
        for number in edit.files:
            shutil.copy2(place.workspace / entries[number].path, staging / "new" / str(number))
        record = {"job": "JOB20261121-999999", "node": 0, "nodes": 1, "tree": "t", "source": "s"}
        update = partial(in_place.supersede, root, staging, done.job, record, edit.listed, edit.apply)
        finished = killed_at(cut, update)
        in_place.recover(root)
        names = [path.name for path in root.glob("JOB*")]
        if names == [record["job"]]:
            assert described(root / record["job"]) == described(place.workspace)
            assert_lists_are_right(root / record["job"], entries)
        else:
            assert names == [done.job]
            assert cut < 5
        if finished:
            break
    (place.workspace / "d0").chmod(0o700)
    assert finished
    assert cut > 8, "the interruptions hit real changes"
