"""A trace of a run follows Chrome's Trace Event Format.

The rules below are those of the published format: the fields that each phase must have, and their types. Perfetto's
own reader is not available here.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from clusterctl.common.curves import Curve
from clusterctl.export.trace import TRACE, trace_events, write_trace
from clusterctl.observe.record.model import Mark, Span
from contract.security.liars import is_harmless
from unit.export.made_up import EVIL, NODES, PROCESSES, T, bucket, record

COMMON: dict[str, Any] = {"name": str, "ph": str, "ts": (int, float), "pid": int, "tid": int}
#: The phases that we write, and the fields that each needs beside the common ones.
NEEDED: dict[str, dict[str, Any]] = {
    "X": {"dur": (int, float), "cat": str},
    "i": {"s": str, "cat": str},
    "C": {"args": dict, "cat": str},
    "M": {"args": dict},
}
METADATA = {"process_name": "name", "thread_name": "name", "process_sort_index": "sort_index"}
METADATA |= {"thread_sort_index": "sort_index"}


def refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


def written(directory: Path, **changes: Any) -> dict[str, Any]:
    directory.mkdir(exist_ok=True)
    count = write_trace(directory, record(**changes))
    trace: dict[str, Any] = json.loads((directory / TRACE).read_bytes(), parse_constant=refuse)
    assert len(trace["traceEvents"]) == count
    return trace


def check(events: list[dict[str, Any]]) -> None:
    """Fail if an event breaks the format."""
    for event in events:
        for field, kind in {**COMMON, **NEEDED[event["ph"]]}.items():
            assert isinstance(event[field], kind), (field, event)
            assert not isinstance(event[field], bool), event
        assert event["ts"] >= 0, event
        assert event.get("dur", 0) >= 0, event
        if event["ph"] == "i":
            assert event["s"] in ("g", "p", "t"), event
        if event["ph"] == "C":
            assert event["args"], "a counter has at least one series"
            assert all(type(value) in (int, float) for value in event["args"].values()), event
        if event["ph"] == "M":
            assert set(event["args"]) == {METADATA[event["name"]]}, event
    timed = [event["ts"] for event in events if event["ph"] != "M"]
    assert timed == sorted(timed)


def test_a_trace_is_strict_json_that_follows_the_format(tmp_path: Path) -> None:
    trace = written(tmp_path)
    assert trace["displayTimeUnit"] == "ms"
    check(trace["traceEvents"])
    assert {event["ph"] for event in trace["traceEvents"]} == {"X", "i", "C", "M"}


def test_nodes_are_processes_and_processes_are_threads_each_with_a_name() -> None:
    events = trace_events(record(nodes=record().nodes[:1]))
    names = {
        (one["name"], one["pid"], one["tid"]): one["args"]["name"] for one in events if "name" in one.get("args", ())
    }
    assert names["process_name", 1, 0] == record().name
    assert names["process_name", NODES[0].id + 2, 0] == "node0 a"
    threads = [name for (what, pid, _), name in names.items() if (what, pid) == ("thread_name", 2)]
    assert threads == [one.name for one in PROCESSES if one.node.id == 0]
    used = {(one["pid"], one["tid"]) for one in events if one["ph"] in "XiC"}
    assert {pid for pid, _ in used} <= {pid for what, pid, _ in names if what == "process_name"} | {3}


def test_spans_are_complete_events_in_microseconds_and_an_open_one_ends_where_the_record_does() -> None:
    spans = [one for one in trace_events(record()) if one["ph"] == "X" and one["tid"] == 2]
    assert [(one["name"], one["ts"], one["dur"]) for one in spans] == [("starting", 0, 1e6), ("running", 1e6, 9e6)]
    assert spans[0]["args"] == {"attempt": 1}


def test_marks_have_the_scope_of_what_they_are_about() -> None:
    marks = [one for one in trace_events(record(curves=())) if one["ph"] == "i"]
    assert [(one["s"], one["pid"], one["tid"], one["ts"]) for one in marks] == [
        ("g", 1, 0, 0),
        ("p", 3, 0, 3e6),
        ("t", 2, 2, 4e6),
    ]


def test_curves_are_counters_with_marks_for_gaps_and_undone_points_apart() -> None:
    events = trace_events(record(marks=()))
    counters = [(one["name"], one["ts"], one["args"]) for one in events if one["ph"] == "C"]
    assert counters == [
        ("trainer0 samples/s (undone)", 1.5e6, {"samples/s": 9.0}),
        ("trainer0 samples/s", 2e6, {"samples/s": 10.0}),
        ("trainer0 cpu (cores)", 2.5e6, {"cpu (cores)": 0.5}),
    ]
    (gap,) = [one for one in events if one["ph"] == "i"]
    assert (gap["name"], gap["ts"]) == ("samples/s not finite", 3e6)


def test_times_before_the_start_are_not_negative(tmp_path: Path) -> None:
    """The clocks of two nodes may differ by some milliseconds."""
    early = (Mark(T - 0.02, "phase", "early"),)
    events = written(tmp_path, marks=early)["traceEvents"]
    check(events)
    assert min(one["ts"] for one in events if one["ph"] == "X") == 20_000


def test_a_trace_is_harmless_whatever_nodes_and_programs_say(tmp_path: Path) -> None:
    evil = record().processes[0]
    evil.spans = (Span(EVIL, T + 2, T + 1, 1),)
    curves = (Curve("trainer", 0, "step", "loss", (bucket(T, 1e308),), False),)
    trace = written(tmp_path, processes=(evil,), curves=curves, mode=EVIL)
    check(trace["traceEvents"])
    text = (tmp_path / TRACE).read_text(encoding="ascii")
    assert "<" not in text
    shown = [word for one in trace["traceEvents"] for word in (one["name"], *one.get("args", {}).values())]
    assert all(is_harmless(word) for word in shown if isinstance(word, str))


def test_a_run_of_which_nothing_is_known_is_a_valid_trace(tmp_path: Path) -> None:
    empty = {"processes": (), "nodes": (), "curves": (), "marks": (), "started_t": None}
    check(written(tmp_path, **empty)["traceEvents"])
