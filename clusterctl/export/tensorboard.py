"""A run as event files of TensorBoard: a directory for each process, and one more for what a roll back undid.

The tags are `step/loss`, `log/accuracy`, `usage/cpu` and so on. TensorBoard stores float32 and shows NaN and infinity
as gaps with a mark. Points without a step, such as those of `usage`, have the seconds since the start of the run.
"""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from clusterctl.errors import UsageError
from clusterctl.escape import for_label
from clusterctl.observe.record.points import Point


def need_tensorboardx() -> None:
    """Raise UsageError if tensorboardX is not installed."""
    if importlib.util.find_spec("tensorboardX") is None:
        raise UsageError("event files need tensorboardX", hint="pip install 'clusterctl[tensorboard]'")


def write_tensorboard(directory: Path, parts: Iterable[Iterable[Point]], started_t: float) -> int:
    """Write the files. Each part has all points of some processes. Return the number of points."""
    from tensorboardX.event_file_writer import EventsWriter, event_pb2

    count = 0
    for part in parts:
        with contextlib.ExitStack() as closing:
            writers: dict[str, Any] = {}
            for point in part:
                name = point.process + ("-undone" if point.undone else "")
                if name not in writers:
                    (directory / name).mkdir()
                    writers[name] = EventsWriter(str(directory / name / "events"))
                    closing.callback(writers[name].close)
                writers[name].write_event(_filled(event_pb2.Event(), point, started_t))
                count += 1
    return count


def _filled(event: Any, point: Point, started_t: float) -> Any:
    event.wall_time = point.t
    event.step = int(max(0.0, point.t - started_t)) if point.step is None else point.step
    event.summary.value.add(tag=for_label(f"{point.of}/{point.name}"), simple_value=float(point.value))
    return event
