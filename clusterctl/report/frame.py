"""The time that a report shows, from the start of the run."""

from __future__ import annotations

from typing import NamedTuple

from clusterctl.observe.record.model import RunRecord

A_DAY_S = 86400.0


class Frame(NamedTuple):
    """The seconds from `start`, a time, to the end of the run, or of what is known of it."""

    start: float
    length_s: float

    @property
    def is_long(self) -> bool:
        """True if times in it need their date."""
        return self.length_s > A_DAY_S / 2

    def at(self, t: float) -> float:
        """Return the place of a time: 0 at the start and 1 at the end."""
        return min(1.0, max(0.0, (t - self.start) / self.length_s))


def frame(record: RunRecord) -> Frame:
    """Return the time from the start of the run to its end; if they are unknown, to the last that is recorded."""
    begins = [process.spans[0].begin for process in record.processes if process.spans]
    begins += [curve.buckets[0].t0 for curve in record.curves if curve.buckets]
    ends = [curve.buckets[-1].t1 for curve in record.curves if curve.buckets]
    ends += [span.end or span.begin for process in record.processes for span in process.spans[-1:]]
    start = record.started_t if record.started_t is not None else min(begins, default=record.read_t)
    end = (
        record.ended_t if record.ended_t is not None else record.read_t if record.is_live else max(ends, default=start)
    )
    return Frame(start, max(end - start, 0.1))
