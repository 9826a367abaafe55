"""The loss and the program's own metrics over a whole run. Pure."""

from __future__ import annotations

from typing import NamedTuple

from clusterctl.common.curves import Bucket, Curve
from clusterctl.observe.record.curves import final, merged
from clusterctl.observe.record.model import RunRecord

CELLS = 400  # in which the lowest and the highest value are looked for
MOST_METRICS = 100


class Metric(NamedTuple):
    """A figure of all trainers together: its value at the end, and its lowest and highest with their steps.

    `final` is None if the last value of a trainer is not finite, or unknown.
    """

    name: str
    final: float | None
    low: Bucket | None
    high: Bucket | None
    gaps: int


def metrics(record: RunRecord) -> list[Metric]:
    """Return the loss and the metrics of the program."""
    loss = _metric("loss", list(record.find("step", "loss", role="trainer")))
    logged = [_metric(name, list(record.find("log", name))) for name in record.metrics[:MOST_METRICS]]
    return [one for one in (loss, *logged) if one is not None]


def _metric(name: str, curves: list[Curve]) -> Metric | None:
    curves = [curve for curve in curves if curve.buckets]
    if not curves:
        return None
    whole = merged(curves, by="step", cells=CELLS) or merged(curves, by="time", cells=CELLS)
    known = [bucket for bucket in whole if bucket.mean is not None]
    end = final(curves)
    if end is not None and known:
        known.append(_end(whole[-1], end))
    return Metric(
        name,
        end,
        min(known, key=lambda bucket: bucket.mean or 0.0, default=None),
        max(known, key=lambda bucket: bucket.mean or 0.0, default=None),
        sum(bucket.gaps for bucket in whole),
    )


def _end(last: Bucket, value: float) -> Bucket:
    """Return the final value as a point, so that no extreme is beaten by it."""
    return last._replace(t0=last.t1, step0=last.step1, mean=value, low=value, high=value, last=value)
