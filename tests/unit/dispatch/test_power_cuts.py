"""A job of which a power cut has damaged files is not used before they are replaced."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from clusterctl.agent.node.content import find_damage, lists_of, read_manifest, stamp_of, write_lists
from clusterctl.common.paths import JobPaths
from clusterctl.common.seal import read_seal
from unit.dispatch.test_delta import Place

BYTES = b"import clusterctl\n" * 100


@pytest.fixture
def place(tmp_path: Path) -> Place:
    made = Place(tmp_path)
    for name in ("train.py", "model.py"):
        (made.workspace / name).write_bytes(BYTES)
    return made


@pytest.fixture
def job(place: Place) -> JobPaths:
    """A job that was dispatched before the node was rebooted."""
    paths = JobPaths(place.job_dirs(place.dispatch())[0])
    reboot(paths)
    return paths


def reboot(job: JobPaths) -> None:
    for mark in job.meta.glob("verified-*"):
        mark.rename(mark.with_name("verified-before"))


def damage(job: JobPaths, name: str, contents: bytes) -> None:
    """Change the contents of a file, but not what the manifest knows of its times and inode."""
    (job.dir / name).write_bytes(contents)
    stamp = stamp_of((job.dir / name).lstat())
    rows = [row._replace(stamp=stamp) if row.entry.path == name else row for row in read_manifest(job.dir) or ()]
    write_lists(job.dir, read_seal(str(job.dir))[0], lists_of(rows, b"[]"))


def found(job: JobPaths) -> list[str]:
    return find_damage(job, lambda: None)


def test_a_job_is_verified_once_after_a_reboot(job: JobPaths) -> None:
    assert found(job) == []
    damage(job, "train.py", b"")
    assert found(job) == [], "nothing is read again"
    reboot(job)
    assert found(job) == ["train.py"]


@pytest.mark.parametrize("contents", [b"", bytes(len(BYTES))], ids=["empty", "zeros"])
def test_other_bytes_that_nobody_wrote_are_damage(job: JobPaths, contents: bytes) -> None:
    damage(job, "train.py", contents)
    assert found(job) == ["train.py"]
    assert found(job) == ["train.py"], "it does not count as verified"


def test_files_that_somebody_changed_or_removed_are_not_damaged(job: JobPaths) -> None:
    (job.dir / "train.py").write_bytes(b"")
    (job.dir / "model.py").unlink()
    assert found(job) == []


def test_a_job_without_its_list_of_files_is_damaged(job: JobPaths) -> None:
    (job.meta / "manifest").write_bytes(b"")
    assert found(job) == [".clusterctl/manifest"]


def test_a_job_of_an_older_version_counts_as_verified_until_the_next_reboot(
    job: JobPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Older versions left no marks. The time of the boot is that of the clock that ticks since then."""
    (job.meta / "verified-before").unlink()
    damage(job, "train.py", b"")
    assert found(job) == []
    monkeypatch.setattr(time, "clock_gettime", lambda _: -1.0)
    assert found(job) == ["train.py"]


def test_a_dispatch_after_a_reboot_replaces_damaged_files(place: Place) -> None:
    job = JobPaths(place.job_dirs(place.dispatch())[0])
    damage(job, "train.py", bytes(len(BYTES)))
    reboot(job)
    (place.workspace / "new").write_text("new")
    place.assert_same(place.dispatch())
