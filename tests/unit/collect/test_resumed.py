"""A collection that broke goes on at the byte at which it broke, and replaces files only by whole ones."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from clusterctl.collect import Collection, ModelSelection, collect
from clusterctl.errors import ClusterctlError, RefusedError
from unit.agent.nodes import PipeCluster, Pipes

JOB = "JOB20261121-081530"
SIZE, CUT_AT = 6_000_000, 2_500_000
OLD = b"an earlier file"
NEW = random.Random(1).randbytes(SIZE)


class Line:
    """The connection to one node, and what came over it. `damage` changes the data that is read."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.moved = 0
        self.cut_at: int | None = None
        self.damage: Callable[[bytes], bytes] = lambda data: data
        self.cluster = PipeCluster(directory, sys.executable, nodes=1)
        self.job = self.cluster.home(0) / "clusterctl" / JOB
        (self.job / ".clusterctl").mkdir(parents=True)
        (self.job / ".clusterctl/job.json").write_text("{}")
        (self.job / "output").mkdir()
        self.target = directory / "home"
        read = Pipes.read

        def watched(pipes: Pipes, count: int, deadline_s: float | None = None) -> bytes:
            if self.cut_at is not None and self.moved > self.cut_at:
                pipes.popen.kill()
                pipes.popen.wait()
            data = read(pipes, count, deadline_s)
            self.moved += len(data)
            return self.damage(data)

        monkeypatch.setattr(Pipes, "read", watched)

    def write(self, data: bytes, name: str = "weights") -> None:
        (self.job / "output" / name).write_bytes(data)

    def brought(self, name: str = "weights") -> bytes:
        return (self.target / "node-0/output" / name).read_bytes()

    def collect(self, cut_at: int | None = None, report: Any = lambda *_: None) -> Collection:
        self.moved, self.cut_at = 0, cut_at
        return collect(self.cluster, self.cluster.nodes, JOB, self.target, report, ModelSelection(None))

    def left(self) -> list[str]:
        return sorted(path.name for path in self.target.iterdir())


@pytest.fixture
def line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Line:
    """A collection of the earlier files, and new ones on the node, the first of which broke."""
    line = Line(tmp_path, monkeypatch)
    line.write(OLD)
    line.write(OLD * 1000, "other")
    assert line.collect().outcomes[0].ok
    line.write(NEW)
    outcome = line.collect(CUT_AT).outcomes[0]
    assert not outcome.ok
    assert line.brought() == OLD, "until the new one has arrived whole"
    return line


def test_a_collection_goes_on_where_it_broke(line: Line) -> None:
    came = line.moved
    assert CUT_AT < came < SIZE
    done = line.collect()
    assert line.moved == SIZE - came, "and nothing of the file that has not changed"
    assert line.brought() == NEW
    assert line.brought("other") == OLD * 1000
    assert sorted(file.bytes for file in done.files) == [len(OLD) * 1000, SIZE]
    assert line.left() == ["job", "node-0"]


def test_a_file_that_changed_meanwhile_comes_as_a_whole(line: Line) -> None:
    other = random.Random(2).randbytes(SIZE - 7)
    line.write(other)
    assert line.collect().outcomes[0].ok
    assert (line.moved, line.brought()) == (len(other), other)


def test_of_a_log_that_has_grown_only_the_new_lines_come(line: Line) -> None:
    line.write(NEW)
    line.collect()
    line.write(NEW + b"more")
    reports: list[tuple[int, int]] = []
    line.collect(report=lambda node, done, total: reports.append((done, total)))
    assert (line.moved, line.brought()) == (4, NEW + b"more")
    assert reports[-1] == (SIZE + 4 + len(OLD) * 1000,) * 2


@pytest.mark.parametrize("times", [1, 2])
def test_a_file_that_arrives_damaged_is_sent_once_more(line: Line, times: int) -> None:
    damaged = []

    def damage(data: bytes) -> bytes:
        if len(damaged) == times or (damaged and line.moved < SIZE):  # once in each transfer
            return data
        damaged.append(line.moved)
        return bytes([data[0] ^ 1]) + data[1:]

    line.damage = damage
    outcome = line.collect().outcomes[0]
    assert line.moved > SIZE, "from its start"
    if times == 1:
        assert (outcome.ok, line.brought()) == (True, NEW)
    else:
        assert isinstance(outcome.error, ClusterctlError)
        assert outcome.error.message == "weights arrived damaged: its checksum differs"
        assert line.brought() == OLD
    assert line.left() == ["job", "node-0"]


def test_a_second_collection_into_one_directory_is_refused(line: Line) -> None:
    refusals: list[str] = []

    def meanwhile(*_: Any) -> None:
        if not refusals:
            with pytest.raises(RefusedError) as refused:
                line.collect()
            refusals.append(refused.value.message)

    assert line.collect(report=meanwhile).outcomes[0].ok
    assert refusals == [f"another collect is writing to {line.target}"]
    assert line.collect().outcomes[0].ok
