"""Fabricated records of runs, for the views of a record. All names and texts of programs and nodes are hostile."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import replace

from clusterctl.cluster.run_answers import LeftOutNode
from clusterctl.common.curves import Bucket, Curve
from clusterctl.config.loader import from_values
from clusterctl.inventory import Node, build
from clusterctl.observe.record.members import Members
from clusterctl.observe.record.model import (
    CauseRecord,
    Mark,
    NodeRecord,
    ProcessRecord,
    RunRecord,
    Span,
    TimedLine,
)

START = 1_700_000_000.0
EVIL = "</script><b>x\" onload='alert(1)' <!-- ]]> \x1b[31m\u202e\r\u2028{{7*7}}"
METRIC = "</script><b>auc"
Key = tuple[str, int]


def points(values: Sequence[float], *, first: int = 1, every: int = 10, begin: float = 12.0, apart: float = 10.0):
    """Return one bucket for each value."""
    for number, value in enumerate(values):
        t, step = START + begin + number * apart, first + number * every
        known = value if math.isfinite(value) else None
        yield Bucket(t, t, step, step, int(known is not None), 32.0, *[known] * 4, int(known is None))


def falling(length: int, seed: int, *, noise: float = 0.06) -> list[float]:
    """Return losses of a run that learns."""
    chance = random.Random(seed)
    return [1.2 + 4 * math.exp(-3.0 * i / length) + chance.gauss(0, noise) for i in range(length)]


def wavy(length: int, seed: int, middle: float, noise: float = 0.08) -> list[float]:
    chance = random.Random(seed)
    return [max(0.0, middle * (1 + chance.gauss(0, noise))) for _ in range(length)]


def _nodes(count: int) -> tuple[Node, ...]:
    return build(from_values({"HOSTS": [f"10.0.{i // 250}.{10 + i % 250}" for i in range(count)]})).nodes


def _trainer_curves(rank: int, length: int, apart: float, slow: bool) -> list[Curve]:
    speed = 400.0 if slow else 1000.0
    busy = 0.95 if slow else 0.7
    of_step = {
        "loss": falling(length, rank),
        "samples_per_s": wavy(length, rank + 1000, speed),
        "compute": wavy(length, rank + 2000, busy, 0.03),
        "wait": wavy(length, rank + 3000, (1 - busy) / 2, 0.1),
        "wire": wavy(length, rank + 4000, (1 - busy) / 3, 0.1),
    }
    found = [Curve("trainer", rank, "step", name, tuple(points(v, apart=apart)), False) for name, v in of_step.items()]
    passes = [0.5 + 0.4 * (1 - math.exp(-i / 4)) + 0.002 * rank for i in range(10)]
    span = length * apart / 10
    for name in (METRIC, "perplexity"):
        some = passes if name == METRIC else [100 * (1.5 - value) for value in passes]
        found.append(
            Curve("trainer", rank, "log", name, tuple(points(some, first=length, every=length, apart=span)), False)
        )
    return found


def _usage(role: str, rank: int, length: int, apart: float) -> list[Curve]:
    cpu = wavy(length, rank + (5000 if role == "trainer" else 6000), 0.95 if role == "trainer" else 0.3)
    memory = [(2.1e8 if role == "trainer" else 9e7) + 3e5 * i for i in range(length)]
    both = {"cpu": cpu, "memory": memory}
    return [
        Curve(
            role, rank, "usage", name, tuple(b._replace(step0=None, step1=None) for b in points(v, apart=apart)), False
        )
        for name, v in both.items()
    ]


def _pserver_curves(rank: int, length: int, apart: float) -> list[Curve]:
    figures = {
        "apply_s": wavy(length, rank + 7000, 0.2),
        "send_s": wavy(length, rank + 8000, 0.1),
        "staleness": wavy(length, rank + 9000, 1.5, 0.3),
    }
    found = [Curve("pserver", rank, "step", name, tuple(points(v, apart=apart)), False) for name, v in figures.items()]
    return [replace(one, buckets=tuple(b._replace(step0=None, step1=None) for b in one.buckets)) for one in found]


def _table(rank: int, length: int, apart: float) -> Curve:
    rows = [20_000 * (1 - math.exp(-4 * i / length)) for i in range(length)]
    some = tuple(b._replace(step0=None, step1=None) for b in points(rows, apart=apart))
    return Curve("pserver", rank, "table", "word</script>", some, False)


def _processes(nodes: Sequence[Node], seconds: float) -> list[ProcessRecord]:
    found = []
    for role in ("pserver", "trainer"):
        for node in nodes:
            process = ProcessRecord(role, node.id, "succeeded", exit_code=0, node=node, pid=4000 + node.id)
            ready = START + 2.0 + 0.1 * node.id + (1.5 if role == "trainer" else 0.0)
            process.spans = (
                Span("starting", START + 0.5, ready, 1),
                Span("running", ready, START + seconds, 1),
            )
            process.tail = tuple(
                TimedLine(START + seconds - 20 + i, f"line {i} of {process.name}: {EVIL}") for i in range(20)
            )
            if role == "trainer":
                process.figures = {"pass": 4, "step": 1000, "loss": 1.39, "samples_per_s": 1002.5, "compute": 0.71}
                process.figures.update({"wait": 0.15, "wire": 0.1, "cpu": 0.97, "memory": 213_000_000})
            else:
                process.figures = {"cpu": 0.31, "memory": 92_000_000, "lost": 0}
                process.figures["staleness"] = [[0, 900], [1, 80], [2, 20]]
                process.figures["tables"] = [{"name": EVIL, "rows": 20_000, "bytes": 2_560_000, "lookups": 880_000}]
            found.append(process)
    return found


def succeeded(*, nodes: int = 4, points_each: int = 100, seconds: float = 1020.0) -> RunRecord:
    """Return a good run: a loss and two metrics of each trainer, usage of all processes."""
    machines = _nodes(nodes)
    apart = (seconds - 20) / points_each
    curves: list[Curve] = []
    for node in machines:
        curves += _trainer_curves(node.id, points_each, apart, slow=nodes > 16 and node.id == 7)
        curves += _usage("trainer", node.id, points_each, apart) + _usage("pserver", node.id, points_each, apart)
        curves += [*_pserver_curves(node.id, points_each, apart), _table(node.id, points_each, apart)]
    saves = [Mark(START + seconds * (i + 1) / 5, "saved", f"saved pass-0000{i}") for i in range(5)]
    return RunRecord(
        job="JOB20261121-081530",
        run="0001",
        members=Members("0001", machines, ()),
        state="succeeded",
        mode="async",
        started_t=START,
        ended_t=START + seconds,
        read_t=START + seconds + 60,
        processes=tuple(_processes(machines, seconds)),
        nodes=tuple(
            NodeRecord(node, "succeeded", 0.002, 0.004, {"python": "3.11.2", "numpy": f"1.26{EVIL}"})
            for node in machines
        ),
        curves=tuple(curves),
        marks=(Mark(START, "phase", "starting pservers"), *saves, Mark(START + seconds, "ended", "succeeded")),
        settings={"MODE": "async", "SEED": "7", "KEEP_BEST": f"{METRIC}:max", "RESTARTS": f"3 {EVIL}"},
        env=("HF_TOKEN", f"NAME{EVIL}"),
        arguments=("--num_passes=5", "--note", EVIL),
        workspace=f"workspace {EVIL}",
        saved=tuple(f"pass-0000{i}" for i in range(5)),
        checkpoints=("step-900",),
    )


def failed() -> RunRecord:
    """Return a run that ended because trainer1 failed three times."""
    record = succeeded()
    died, end = START + 620.0, START + 700.0
    for process in record.processes:
        process.state, process.exit_code = "stopped", -15
        process.spans = (process.spans[0], Span("running", process.spans[1].begin, end, 1))
    bad = record.process("trainer", 1)
    assert bad is not None
    bad.state, bad.exit_code, bad.restarts = "failed", 1, 1
    bad.spans = (
        bad.spans[0],
        Span("running", bad.spans[0].end or 0.0, died, 1),
        Span("restarting", died, died + 8, 1),
        Span("starting", died + 8, died + 12, 2),
        Span("running", died + 12, died + 40, 2),
        Span("stalled", died + 40, died + 70, 2),
        Span("running", died + 70, end, 2),
    )
    lines = ("Traceback (most recent call last):", '  File "train.py", line 10, in <module>', f"ValueError: {EVIL}")
    return replace(
        record,
        state="failed",
        ended_t=end,
        curves=_before(record.curves, end),
        marks=(
            Mark(START + 300, "saved", "checkpoint step-300"),
            Mark(died, "restarting", f"exited with code 1 {EVIL}; restarting in 8 s (1 of 1)", 1, "trainer", 1),
            Mark(died + 40, "stalled", "made no step for 30 s", 1, "trainer", 1),
            Mark(end, "exited", "exited with code 1", 1, "trainer", 1),
            Mark(end, "ended", "failed"),
        ),
        cause=CauseRecord(
            end,
            f"trainer1@node1 (10.0.0.11) exited with code 1: ValueError: {EVIL}",
            tuple(TimedLine(end - 1, line) for line in lines),
            (f"the same error ended it 620 s before; {EVIL}",),
            "fix train.py:10, or the data it was reading there",
            1,
            "trainer",
            1,
        ),
        saved=("pass-00000",),
        checkpoints=("step-300",),
    )


def _before(curves: Sequence[Curve], end: float) -> tuple[Curve, ...]:
    return tuple(replace(curve, buckets=tuple(b for b in curve.buckets if b.t1 <= end)) for curve in curves)


def lost() -> RunRecord:
    """Return a run whose supervisors are gone without a word."""
    record = succeeded()
    for process in record.processes:
        process.state, process.exit_code = "lost", None
        process.spans = (*process.spans[:1], Span("running", process.spans[1].begin, START + 400, 1))
    nodes = tuple(replace(node, state="lost") for node in record.nodes)
    marks = (Mark(START + 400, "lost", f"is lost: {EVIL}", 2),)
    return replace(
        record, state="lost", ended_t=None, nodes=nodes, curves=_before(record.curves, START + 400), marks=marks
    )


def resumed() -> RunRecord:
    record = succeeded()
    return replace(record, run="0002", resumed={"run": "0001", "step": 300, "job": "JOB20261120-101010"})


def running() -> RunRecord:
    """Return a run that goes on."""
    record = succeeded()
    for process in record.processes:
        process.state, process.exit_code = "running", None
        process.spans = (process.spans[0], Span("running", process.spans[1].begin, None, 1))
    now = START + 500
    return replace(
        record, state="running", ended_t=None, read_t=now, curves=_before(record.curves, now), marks=record.marks[:2]
    )


def silent_node() -> RunRecord:
    """Return a run of which node2 does not answer, and node3 was left out."""
    record = succeeded()
    for process in record.processes:
        if process.node.id == 2:
            process.state, process.exit_code, process.spans, process.tail = "unknown", None, (), ()
            process.figures = {}
    members = Members("0001", record.members.nodes[:3], (LeftOutNode(node=3, message=f"disk full {EVIL}"),))
    nodes = [
        replace(one, state="unknown", versions={}, offset_s=None, problem=f"connection refused {EVIL}")
        if one.node.id == 2
        else one
        for one in record.nodes[:3]
    ]
    return replace(
        record,
        members=members,
        nodes=tuple(nodes),
        processes=tuple(one for one in record.processes if one.node.id != 3),
        curves=tuple(curve for curve in record.curves if curve.rank < 2),
    )


def rolled_back() -> RunRecord:
    """Return a run with NaN and infinity in its loss, whose steps 301 to 400 were undone and done again."""
    record = succeeded()
    curves = []
    for curve in record.curves:
        if (curve.of, curve.name) == ("step", "loss"):
            bad = [*range(40, 44), 60]
            buckets = tuple(
                b._replace(points=0, low=None, high=None, mean=None, last=None, gaps=1) if i in bad else b
                for i, b in enumerate(curve.buckets)
            )
            gone = tuple(points(wavy(10, curve.rank, 2.6, 0.02), first=301, begin=300.0))
            curves += [replace(curve, buckets=buckets), replace(curve, buckets=gone, undone=True)]
        else:
            curves.append(curve)
    back = Mark(START + 405, "rolled_back", "rolling back all processes to checkpoint step-300 (step 300)")
    nan = Mark(START + 412, "nan", f"the loss is not finite (pass 1, step 401) {EVIL}", 1, "trainer", 1)
    return replace(record, curves=tuple(curves), marks=(*record.marks[:3], back, nan, *record.marks[3:]))


def large() -> RunRecord:
    """Return a run of an hour with 64 trainers and 64 pservers, reduced as nodes reduce it."""
    return succeeded(nodes=64, points_each=400, seconds=3600.0)


RECORDS = {
    "succeeded": succeeded,
    "failed": failed,
    "lost": lost,
    "resumed": resumed,
    "running": running,
    "silent_node": silent_node,
    "rolled_back": rolled_back,
    "large": large,
}
