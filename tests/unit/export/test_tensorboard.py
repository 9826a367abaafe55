"""Event files of TensorBoard, read back by tensorboardX's own messages and by TensorBoard's EventAccumulator."""

from __future__ import annotations

import math
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from clusterctl.errors import UsageError
from clusterctl.export.tensorboard import need_tensorboardx, write_tensorboard
from clusterctl.observe.record.points import Point
from contract.security.liars import is_harmless
from unit.export.made_up import EVIL, T

VALUES = [0.1, 1 / 3, -0.0, 1e-45, 3.4e38, 1e39, math.nan, math.inf, -math.inf, 2**53 + 1]


def point(value: float, step: int | None = 1, **more: Any) -> Point:
    return Point(T + (step or 0), 0, "trainer", 0, 1, "step", "loss", step, 0, value)._replace(**more)


def scalars(directory: Path) -> Iterator[tuple[str, int, float, float]]:
    """Yield tag, step, time and value of the event file in a directory. A record is length, CRC, data, CRC."""
    from tensorboardX.proto.event_pb2 import Event  # noqa: PLC0415 - optional

    (path,) = directory.glob("events.out.tfevents.*")
    data, at = path.read_bytes(), 0
    while at < len(data):
        (length,) = struct.unpack_from("<Q", data, at)
        event = Event.FromString(data[at + 12 : at + 12 + length])
        at += 16 + length
        for value in event.summary.value:
            yield value.tag, event.step, event.wall_time, value.simple_value


def as_float32(values: list[float]) -> bytes:
    """Return the bits as float32; a value that is too large for it becomes infinite."""
    import numpy as np  # noqa: PLC0415 - optional

    with np.errstate(over="ignore"):
        return np.array(values, np.float32).tobytes()


def test_each_process_has_a_directory_and_what_was_undone_another(tmp_path: Path) -> None:
    parts = [[point(1.0), point(2.0, undone=True), point(3.0, role="pserver")], [point(4.0, rank=1)]]
    assert write_tensorboard(tmp_path, parts, T) == 4
    assert sorted(path.name for path in tmp_path.iterdir()) == ["pserver0", "trainer0", "trainer0-undone", "trainer1"]
    assert list(scalars(tmp_path / "trainer0-undone")) == [("step/loss", 1, T + 1, 2.0)]


def test_values_are_equal_as_float32_and_steps_and_times_exactly(tmp_path: Path) -> None:
    write_tensorboard(tmp_path, [[point(value, step) for step, value in enumerate(VALUES)]], T)
    found = list(scalars(tmp_path / "trainer0"))
    assert [one[:3] for one in found] == [("step/loss", step, T + step) for step in range(len(VALUES))]
    assert as_float32([one[3] for one in found]) == as_float32(VALUES)


def test_a_point_without_a_step_has_the_seconds_since_the_start(tmp_path: Path) -> None:
    write_tensorboard(tmp_path, [[point(1.0, None, t=T + 61.9, of="usage", name="cpu"), point(1.0, None, t=T - 1)]], T)
    assert [one[:2] for one in scalars(tmp_path / "trainer0")] == [("usage/cpu", 61), ("step/loss", 0)]


def test_hostile_names_are_harmless_tags(tmp_path: Path) -> None:
    write_tensorboard(tmp_path, [[point(1.0, name=EVIL * 100)]], T)
    ((tag, *_),) = scalars(tmp_path / "trainer0")
    assert is_harmless(tag)
    assert len(tag) <= 200


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    with pytest.raises(UsageError) as caught:
        need_tensorboardx()
    assert caught.value.hint == "pip install 'clusterctl[tensorboard]'"


@pytest.mark.slow
def test_tensorboard_itself_reads_the_same(tmp_path: Path) -> None:
    accumulators = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator", reason="needs tensorboard: pip install '.[engines]'"
    )
    write_tensorboard(tmp_path, [[point(value, step) for step, value in enumerate(VALUES)]], T)
    accumulator = accumulators.EventAccumulator(str(tmp_path / "trainer0"), {"scalars": 0})
    accumulator.Reload()
    assert accumulator.Tags()["scalars"] == ["step/loss"]
    found = accumulator.Scalars("step/loss")
    assert [(one.step, one.wall_time) for one in found] == [(step, T + step) for step in range(len(VALUES))]
    assert as_float32([one.value for one in found]) == as_float32(VALUES)
