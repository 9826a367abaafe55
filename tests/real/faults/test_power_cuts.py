"""Power cuts: copies of a node's ext4 disk, as it is at some moment, without what the kernel has not written yet."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from clusterctl.agent.node.content import read_manifest
from clusterctl.common.files import digest_of
from clusterctl.common.tree import FILE
from clusterctl.dispatch import Progress, dispatch, scan
from clusterctl.observe.record.jobs import jobs
from support.processes import wait_until
from unit.agent.nodes import BUNDLE, PipeCluster

pytestmark = pytest.mark.faults
MEGABYTES = 48
COPIES = 12
MOST_READS = 200
COMMIT_S = 1  # ext4 writes names to its journal so often, and the bytes of new files up to 30 s later
FILES = 100


def command(*argv: object) -> None:
    subprocess.run([str(word) for word in argv], check=True, capture_output=True, timeout=180)


class Disk:
    """An ext4 file system in an image file, mounted through a loop device."""

    def __init__(self, directory: Path, image: Path | None = None) -> None:
        self.image = image or directory / "image"
        self.top = directory / "disk"
        self.top.mkdir(parents=True)
        if image is None:
            self.image.touch()
            os.truncate(self.image, MEGABYTES << 20)
            command("mkfs.ext4", "-q", self.image)
        command("mount", "-o", f"loop,commit={COMMIT_S}", self.image, self.top)

    def unmount(self) -> None:
        assert wait_until(lambda: subprocess.run(["umount", self.top], check=False).returncode == 0, 20)

    def copy(self, to: Path) -> None:
        """Copy the image at one moment: again if it changed while it was read."""
        for _ in range(MOST_READS):
            before = self.image.read_bytes()
            if before == self.image.read_bytes():
                to.write_bytes(before)
                return
        raise AssertionError("the disk is never at rest")


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    try:
        made = Disk(tmp_path / "node")
    except (OSError, subprocess.CalledProcessError) as exc:
        pytest.skip(f"an ext4 image cannot be mounted here: {exc}")
    yield made
    made.unmount()


def test_whatever_the_moment_of_a_power_cut_every_job_on_the_disk_is_whole(disk: Disk, tmp_path: Path) -> None:
    """The agent and three jobs: the second is made by changing the first, the third by copying from the second."""
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    cluster = PipeCluster(disk.top, sys.executable, nodes=1, RELAY="never")
    copies: dict[Path, list[str]] = {}
    known: list[str] = []
    for number in range(COPIES):
        if number % 4 == 0:
            for file in range(FILES):
                (workspace / f"{file}").write_text(f"{number if file % 3 == 0 else 0} {file}\n" * 100)
            done = dispatch(cluster, scan(workspace), Progress(), f"JOB20261122-{number:06d}", cache=tmp_path / "cache")
            known = [job for job in known if number == 8] + [done.job]
            if number == 4:
                (cluster.home(0) / "clusterctl" / done.job / ".clusterctl/runs/0001").mkdir()
        else:
            time.sleep(COMMIT_S * 0.7)  # the moment of the copy is what the test is about
        copies[tmp_path / f"copy{number}"] = list(known)
        disk.copy(tmp_path / f"copy{number}")
    for image, expected in copies.items():
        inspect(image, expected)


def inspect(image: Path, expected: list[str]) -> None:
    """Boot a node from a copy: its agent answers, and it has exactly these jobs, with the bytes that were sent."""
    disk = Disk(image.with_name(f"{image.name}-node"), image)
    try:
        cluster = PipeCluster(disk.top, sys.executable, nodes=1, RELAY="never")
        root = cluster.home(0) / "clusterctl"
        for path in (root / ".clusterctl/lib" / BUNDLE.digest).rglob("*.py"):
            assert path.stat().st_size or path.name == "__init__.py", f"{path} is empty in {image.name}"
        assert sorted(path.name for path in root.glob("JOB*")) == expected, image.name
        for job in expected:
            rows = [row for row in read_manifest(root / job) or () if row.entry.kind == FILE]
            assert len(rows) == FILES, image.name
            wrong = [row.entry.path for row in rows if digest_of(root / job / row.entry.path) != row.entry.digest]
            assert wrong == [], (image.name, job)
        assert sorted(job.job for job in jobs(cluster)[0]) == expected
    finally:
        disk.unmount()
