"""A run in the Trace Event Format of Chrome, as JSON: https://ui.perfetto.dev and chrome://tracing open it.

Each node is a process of the trace, and each process of the run a thread in it. States are complete events, marks are
instant events, and curves are counters. Times are in microseconds since the start of the run.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from clusterctl.common.curves import Bucket, Curve
from clusterctl.escape import clean, for_label, for_script
from clusterctl.inventory import Node
from clusterctl.observe.record.model import Mark, ProcessRecord, RunRecord, Span

TRACE = "trace.json"
#: The curves that are counters: what they are of, their name, and the counter's.
COUNTERS: Mapping[tuple[str, str], str] = {
    ("step", "samples_per_s"): "samples/s",
    ("step", "loss"): "loss",
    ("usage", "cpu"): "cpu (cores)",
    ("usage", "memory"): "memory (bytes)",
}
OF_THE_RUN = 1  # the process of the trace for marks of the whole run; those of nodes follow
Event = dict[str, Any]


def write_trace(directory: Path, record: RunRecord) -> int:
    """Write the file. Return the number of events."""
    events = trace_events(record)
    about = {"run": clean(record.name), "state": record.state}
    with (directory / TRACE).open("w", encoding="ascii") as file:
        file.write(f'{{"displayTimeUnit":"ms","otherData":{for_script(about)},"traceEvents":[\n')
        file.write(",\n".join(map(for_script, events)))
        file.write("\n]}\n")
    return len(events)


def trace_events(record: RunRecord) -> list[Event]:
    """Return all events: the names first, the others in order of time."""
    tracks = _Tracks(record)
    timed = [*tracks.spans(), *tracks.marks(), *tracks.counters()]
    return [*tracks.names(), *sorted(timed, key=lambda event: int(event["ts"]))]


class _Tracks:
    """The processes and threads of the trace, by the nodes and processes of the run."""

    def __init__(self, record: RunRecord) -> None:
        self._record = record
        self._tids = {(one.role, one.rank): number for number, one in enumerate(record.processes, 1)}
        times = [span.begin for one in record.processes for span in one.spans] + [mark.t for mark in record.marks]
        times += [bucket.t0 for curve in record.curves for bucket in curve.buckets]
        started = [] if record.started_t is None else [record.started_t]
        self._zero = min([*times, *started], default=0.0)  # clocks may differ by some milliseconds

    def _ts(self, t: float) -> int:
        return round((t - self._zero) * 1e6)

    def _of_process(self, process: ProcessRecord) -> Event:
        return {"pid": _pid(process.node), "tid": self._tids[process.role, process.rank]}

    def names(self) -> Iterator[Event]:
        """Yield the names of all processes and threads, and their order."""
        yield from _named("process", self._record.name, 0, {"pid": OF_THE_RUN, "tid": 0})
        for known in self._record.nodes:
            name = f"{known.node.label} {known.node.where}" + ("" if known.problem is None else " (did not answer)")
            yield from _named("process", name, known.node.id + 1, {"pid": _pid(known.node), "tid": 0})
        for process in self._record.processes:
            track = self._of_process(process)
            yield from _named("thread", process.name, track["tid"], track)

    def spans(self) -> Iterator[Event]:
        for process in self._record.processes:
            for span in process.spans:
                yield {**self._span(span), **self._of_process(process)}

    def _span(self, span: Span) -> Event:
        end = span.end if span.end is not None else self._record.ended_t or self._record.read_t
        dur = max(0, self._ts(end) - self._ts(span.begin))
        about: Event = {"args": {"attempt": span.attempt}, "cat": "state"}
        return {"name": clean(span.state), "ph": "X", "ts": self._ts(span.begin), "dur": dur, **about}

    def marks(self) -> Iterator[Event]:
        for mark in self._record.marks:
            about = {"cat": clean(mark.kind), "args": {"text": clean(mark.text)}}
            yield {"name": for_label(mark.text), "ph": "i", "ts": self._ts(mark.t), **about, **self._place(mark)}

    def _place(self, mark: Mark) -> Event:
        """Return the track of a mark, and its scope: thread, process or global."""
        process = self._record.process(mark.role, mark.rank)
        if process is not None:
            return {"s": "t", **self._of_process(process)}
        node = None if mark.node is None else self._record.members.by_id.get(mark.node)
        return {"s": "g", "pid": OF_THE_RUN, "tid": 0} if node is None else {"s": "p", "pid": _pid(node), "tid": 0}

    def counters(self) -> Iterator[Event]:
        for curve in self._record.curves:
            process = self._record.process(curve.role, curve.rank)
            label = COUNTERS.get((curve.of, curve.name))
            if process is not None and label is not None:
                yield from self._counter(curve, process, label)

    def _counter(self, curve: Curve, process: ProcessRecord, label: str) -> Iterator[Event]:
        """Yield the means of the buckets. A counter has no gaps, so a mark is where values were not finite."""
        track = self._of_process(process)
        name = f"{process.name} {label}" + (" (undone)" if curve.undone else "")
        for bucket in curve.buckets:
            ts = self._ts(bucket.t)
            if bucket.mean is not None:
                yield {"name": name, "ph": "C", "ts": ts, **track, "cat": curve.of, "args": {label: bucket.mean}}
            if bucket.gaps:
                yield {**_gap(bucket, label), "ts": ts, **track}


def _pid(node: Node) -> int:
    return node.id + OF_THE_RUN + 1


def _gap(bucket: Bucket, label: str) -> Event:
    about = {"text": f"{bucket.gaps} of {bucket.points + bucket.gaps} values were NaN or infinite"}
    return {"name": f"{label} not finite", "ph": "i", "s": "t", "cat": "gap", "args": about}


def _named(what: str, name: str, order: int, track: Mapping[str, int]) -> Iterable[Event]:
    yield {"name": f"{what}_name", "ph": "M", "ts": 0, **track, "args": {"name": clean(name)}}
    yield {"name": f"{what}_sort_index", "ph": "M", "ts": 0, **track, "args": {"sort_index": order}}
