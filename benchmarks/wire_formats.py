"""Measure WIRE = "int8" and "int4": the rounding alone, and a step of a dense table in bytes and seconds.

The step is push + update + the new values in return, of 1 trainer with 2 pservers over TCP on loopback, which is faster
than most networks: the bytes tell what a slow one gains. Without a network, rounding is one thread's work.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import ps_common as bench
from clusterctl.runtime.table.quantization import QUANTIZERS
from clusterctl.runtime.table.sharding import PART_ELEMENTS

FORMATS = (None, "int8", "int4")


def trainer(given: dict[str, Any]) -> None:
    from clusterctl.runtime import Momentum, connect
    from clusterctl.runtime.wire import messages as wire

    sent, received = [0], [0]
    wire.encode = counted(wire.encode, sent, lambda frames, result: result)
    wire.decode = counted(wire.decode, received, lambda frames, result: frames)
    gradient = np.random.default_rng(0).standard_normal(given["elements"]).astype(np.float32)
    watch = bench.Stopwatch()
    with connect() as ps:
        w = ps.dense("w", len(gradient), Momentum(0.7, 0.9, nesterov=True), wire=given["form"])
        assert w.value[-1] == 0  # its first use makes a table
        first = sent[0], received[0]
        watch.tick()
        for _ in ps.steps(lambda pass_, rng: itertools.count(), passes=1):
            ps.push({w: gradient}, samples=1)
            steps = max(1, ps.step)
            watch.tick(sent=(sent[0] - first[0]) / steps, received=(received[0] - first[1]) / steps)


def counted(f: Callable[..., Any], total: list[int], frames_of: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    """Return `f`, which adds the bytes of the frames of each call to `total`."""

    def call(frames: Any, *rest: Any) -> Any:
        result = f(frames, *rest)
        total[0] += sum(len(frame) for frame in frames_of(frames, result))
        return result

    return call


def rounding(megabytes: float) -> None:
    """Print the speed of Q and of its reversal, in pieces as tables are cut."""
    parts = max(1, int(megabytes * 1e6 / 4 / PART_ELEMENTS))
    piece = np.random.default_rng(0).standard_normal(PART_ELEMENTS).astype(np.float32)
    rows = []
    for name, quantizer in QUANTIZERS.items():
        packed, _ = quantizer.pack(piece)
        pack_s = statistics.median(seconds(lambda q=quantizer: q.pack(piece), parts) for _ in range(5))
        unpack_s = statistics.median(seconds(lambda q=quantizer, p=packed: q.unpack(p), parts) for _ in range(5))
        size = parts * piece.nbytes / 1e6
        rows.append([name, f"{size / pack_s:.0f}", f"{size / unpack_s:.0f}", f"{100 * pack_s / size:.3f}"])
    bench.show(["format", "MB/s of float32 rounded", "and back", "s to round 100 MB"], rows)


def seconds(work: Callable[[], object], times: int) -> float:
    began = time.perf_counter()
    for _ in range(times):
        work()
    return time.perf_counter() - began


def step_of(form: str | None, elements: int, steps: int) -> tuple[float, float, float]:
    """Return the bytes sent and received by the trainer in a step, and the median seconds."""
    layout = bench.Layout(1, 2, {"shm": "off"})
    with bench.fleet(layout, __file__, elements=elements, form=form) as running:
        running.wait()
        running.trainers[0].send(str(steps))
        facts = running.trainers[0].receive()
        return facts["sent"], facts["received"], statistics.median(facts["seconds"])


def main() -> None:
    given = bench.options(__doc__.splitlines()[0], megabytes=100.0, steps=6, rounds=3).parse_args()
    rounding(given.megabytes)
    elements = int(given.megabytes * 1e6 / 4)
    contenders = {form or "float32": lambda form=form: step_of(form, elements, given.steps) for form in FORMATS}
    figures = bench.contest(contenders, given.rounds)
    full_sent, full_received, _ = figures["float32"][0]
    rows = []
    for name, rounds in figures.items():
        sent, received, _ = rounds[0]
        shares = [f"{100 * sent / full_sent:.1f}%", f"{100 * received / full_received:.1f}%"]
        rows.append([name, f"{sent:,.0f}", f"{received:,.0f}", *shares, *bench.spread([each[2] for each in rounds])])
    bench.show(["format", "bytes sent", "received", "of float32", "of float32", "s per step", "range"], rows)


if __name__ == "__main__":
    bench.run(main, trainer)
