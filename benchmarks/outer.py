"""Measure the outer mode (DiLoCo) over slow links, beside DDP, PowerSGD and PostLocalSGD of torch over gloo.

Four machines made of network namespaces, each with a trainer and, for ours, a pserver, train a transformer over bytes
on Python's documentation. The loss by step is measured without a limit on the links, the seconds per step with tbf at
each rate; the wall time to a held-out loss is the product of the steps and the seconds. Needs root, and torch.

    python benchmarks/outer.py --quick
    python benchmarks/outer.py --results outer.json --tokens 256 --rates 10,100,0
    python benchmarks/outer.py --results trained.json --only losses --begin-after 2000

With --results, each measurement is added to the file as soon as it is made, and none that the file has is made again.
With --begin-after, all begin from the model that DDP has after so many steps, each with a new optimizer and schedule.

The bound is the speed-up over DDP that the links allow: (compute + all-reduce) / (compute + exchange / every), where
compute is a step that sends nothing, and all-reduce is that of as many float32 numbers as the model has, both measured
here; an exchange takes as long as an all-reduce of the same bytes.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import itertools
import json
import re
import statistics
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1] / "workspace_torch"))

import prepare_data
from networks import DEVICE, Network, network
from ps_common import Child, Layout, fleet, options, show

NODES = 4
TRAINER = str(Path(__file__).with_name("outer_trainer.py"))
#: Contenders that exchange something once in `every` steps, and their bytes relative to float32.
ROUNDS = {"outer": 1.0, "outer-int8": 1 / 4, "outer-int4": 1 / 8, "postlocal": 1.0}
OURS = ("distribute", "outer", "outer-int8", "outer-int4")
CONTENDERS = ("ddp", "powersgd", "postlocal", *OURS)
PORT = 29_400
DOCSTRINGS = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass
class Results:
    """All measurements by name, also in a file if there is one."""

    file: Path | None
    found: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.file is not None and self.file.exists():
            self.found = json.loads(self.file.read_text())

    def add(self, name: str, value: Any) -> None:
        self.found[name] = value
        if self.file is not None:
            self.file.write_text(json.dumps(self.found, indent=1))

    def seconds(self, tokens: int, rate: int, contender: str) -> float | None:
        """Return the seconds of a step."""
        return self.found.get(f"seconds/{tokens}/{rate}/{contender}")

    def losses(self, tokens: int, contender: str) -> list[tuple[int, float]] | None:
        return self.found.get(f"losses/{tokens}/{contender}")


@dataclass(frozen=True)
class Bench:
    """Measures contenders on a network, and adds what it finds to `results`. All trainers get `common`."""

    net: Network
    results: Results
    chosen: argparse.Namespace
    common: dict[str, Any]

    def measure_losses(self, tokens: int, contender: str) -> None:
        name = f"losses/{tokens}/{contender}"
        if name in self.results.found:
            return
        self.net.shape(None)
        steps, begin = self.chosen.steps[tokens], self._begin(tokens)
        records = self._run(contender, tokens=tokens, steps=steps, evaluate_every=self.chosen.every, begin=begin)
        self.results.add(name, records[0]["losses"])

    def _begin(self, tokens: int) -> str:
        """Return the file with the model to begin with, made by DDP if it is not there yet; empty for a new one."""
        if not self.chosen.begin_after:
            return ""
        folder = Path(self.common["data"]) if self.chosen.results is None else self.chosen.results.absolute().parent
        model = folder / f"outer-{tokens}-{self.chosen.begin_after}.pt"
        if not model.exists():
            self._run("ddp", tokens=tokens, steps=self.chosen.begin_after, evaluate_every=0, end=str(model))
        return str(model)

    def measure_seconds(self, tokens: int, rate: int, contender: str) -> None:
        """Measure whole rounds after the first, or steps after the first ones: those of PowerSGD are plain.

        A step that sends nothing is measured over as many as rounds have.
        """
        name = f"seconds/{tokens}/{rate}/{contender}"
        if name in self.results.found:
            return
        self.net.shape(rate or None)
        has_rounds = contender in ROUNDS or contender == "compute"
        skip, count = (self.chosen.every, 2 * self.chosen.every) if has_rounds else (12, self.chosen.timed)
        sent = self.net.sent_bytes(0)
        records = self._run(contender, tokens=tokens, steps=skip + count, evaluate_every=0)
        self.results.add(f"bytes/{tokens}/{rate}/{contender}", (self.net.sent_bytes(0) - sent) / (skip + count))
        self.results.add(name, max(statistics.fmean(record["seconds"][skip:]) for record in records))

    def _run(self, contender: str, **more: Any) -> list[dict[str, Any]]:
        """Run the trainers of a contender to their end, and return what each reports."""
        given = {"contender": contender, **self.common, **more}
        began = time.monotonic()
        with self._trainers(contender, given) as trainers:
            records = [trainer.receive() for trainer in trainers]
        print(f"{contender} {more}: {time.monotonic() - began:.0f} s", flush=True)
        return records

    @contextlib.contextmanager
    def _trainers(self, contender: str, given: dict[str, Any]) -> Iterator[list[Child]]:
        if contender in OURS:
            wire = contender.partition("-")[2] or "float32"
            with fleet(Layout(NODES, NODES, {"wire": wire}), TRAINER, self.net, **given) as running:
                yield running.trainers
            return
        with contextlib.ExitStack() as stack:
            trainers = []
            for rank, node in enumerate(self.net.nodes):
                env = {"MASTER_ADDR": self.net.address(0), "MASTER_PORT": str(PORT), "WORLD_SIZE": str(NODES)}
                env |= {"RANK": str(rank), "GLOO_SOCKET_IFNAME": DEVICE, "TORCH_CPP_LOG_LEVEL": "ERROR"}
                argv = [TRAINER, "trainer", json.dumps(given)]
                trainers.append(Child(argv, env, Path.cwd(), prefix=node.inside()))
                stack.callback(trainers[-1].reap)
            yield trainers


def make_text(folder: Path) -> None:
    """Write train.txt and test.txt as the workspace does, with the docstrings of the top-level modules added."""
    paragraphs = list(dict.fromkeys([*prepare_data.read_paragraphs(), *read_docstrings()]))
    (folder / "train.txt").write_text("\n\n".join(text for n, text in enumerate(paragraphs) if n % 10 != 9))
    (folder / "test.txt").write_text("\n\n".join(paragraphs[9::10]))


def read_docstrings() -> Iterator[str]:
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            text = ast.get_docstring(node) if isinstance(node, DOCSTRINGS) else None
            yield from (part for part in re.split(r"\n\s*\n", text or "") if part.strip())


def steps_to(losses: Sequence[tuple[int, float]], target: float) -> float | None:
    """Return the step at which the loss falls to `target`, between two evaluations by interpolation; None if never."""
    for (step, loss), (next_step, next_loss) in itertools.pairwise(losses):
        if next_loss <= target:
            return step + (next_step - step) * max(0.0, loss - target) / max(loss - next_loss, 1e-9)
    return None


def loss_rows(results: Results, tokens: int, target: float) -> list[list[str]]:
    rows = []
    reference = (results.losses(tokens, "ddp") or [(0, float("nan"))])[-1][1]
    for contender in CONTENDERS:
        losses = results.losses(tokens, contender)
        if losses:
            step, last = losses[-1]
            needed = steps_to(losses, target)
            reached = "-" if needed is None else f"{needed:.0f}"
            rows.append([contender, f"{step}", f"{last:.4f}", f"{100 * (last / reference - 1):+.1f}%", reached])
    return rows


def time_rows(results: Results, tokens: int, rate: int, every: int, target: float) -> list[list[str]]:
    """Return a row for each contender: its time, and for ours and PostLocalSGD what the bound allows."""
    rows = []
    compute, all_reduce = (results.seconds(tokens, at, name) for at, name in ((0, "compute"), (rate, "allreduce")))
    for contender in CONTENDERS:
        seconds = results.seconds(tokens, rate, contender)
        if seconds is None:
            continue
        ddp = results.seconds(tokens, rate, "ddp")
        faster = f"{ddp / seconds:.2f}" if ddp else "-"
        bound = share = "-"
        if contender in ROUNDS and compute is not None and all_reduce is not None:
            ideal = compute + all_reduce * ROUNDS[contender] / every
            bound, share = f"{(compute + all_reduce) / ideal:.1f}", f"{ideal / seconds:.2f}"
        needed = steps_to(results.losses(tokens, contender) or [], target)
        wall = "-" if needed is None else f"{needed * seconds:.0f}"
        sent = results.found.get(f"bytes/{tokens}/{rate}/{contender}", 0) / 1e3
        rows.append([contender, f"{seconds:.3f}", f"{sent:,.0f}", faster, bound, share, wall])
    return rows


def target_of(results: Results, tokens: int) -> float:
    """Return a loss that all contenders reach: a little above the highest of their last ones."""
    last = [losses[-1][1] for name in CONTENDERS if (losses := results.losses(tokens, name))]
    return max(last) * 1.005 if last else float("nan")


def show_all(results: Results, chosen: argparse.Namespace) -> None:
    for tokens in chosen.tokens:
        target = chosen.target or target_of(results, tokens)
        print(f"\n{tokens} tokens per step and trainer, {NODES} trainers; every {chosen.every} steps\n")
        show(
            ["", "steps", "held-out loss", "relative to DDP", f"steps to {target:.3f}"],
            loss_rows(results, tokens, target),
        )
        for rate in chosen.rates:
            parts = [results.seconds(tokens, at, name) for at, name in ((0, "compute"), (rate, "allreduce"))]
            known = ", ".join(
                f"{name} {s:.3f} s" for name, s in zip(("compute", "all-reduce"), parts, strict=True) if s
            )
            print(f"\n{tokens} tokens, {f'{rate} Mbit/s' if rate else 'unshaped'}: {known}\n")
            headings = ["", "s/step", "KB sent/step and node", "x DDP", "bound", "of the bound", f"s to {target:.3f}"]
            show(headings, time_rows(results, tokens, rate, chosen.every, target))


def numbers(text: str) -> list[int]:
    return [int(word) for word in text.split(",")]


def read_options() -> argparse.Namespace:
    parser = options(__doc__.partition("\n")[0], every=50, timed=10, learning_rate=0.001, depth=5, seed=1)
    parser.add_argument("--outer-rate", type=float, default=0.7, help="of the outer Momentum (default 0.7)")
    parser.add_argument("--outer-momentum", type=float, default=0.9, help="(default 0.9)")
    parser.add_argument("--tokens", type=numbers, default=[256, 2048], help="per step and trainer (default 256,2048)")
    parser.add_argument("--rates", type=numbers, default=[10, 100, 0], help="Mbit/s, 0: unshaped (default 10,100,0)")
    parser.add_argument(
        "--steps", type=numbers, default=[2000, 500], help="of the losses, by tokens (default 2000,500)"
    )
    parser.add_argument(
        "--begin-after", type=int, default=0, help="steps of DDP that make the model to begin with (default: a new one)"
    )
    parser.add_argument("--contenders", type=lambda text: text.split(","), default=list(CONTENDERS))
    parser.add_argument(
        "--target", type=float, default=0.0, help="the held-out loss to reach (default: one that all do)"
    )
    parser.add_argument(
        "--only", choices=("losses", "seconds"), help="losses do not depend on the load of the machine, seconds do"
    )
    parser.add_argument("--results", type=Path, help="a JSON file to add to")
    parser.add_argument("--show", action="store_true", help="only show what the file has")
    parser.add_argument(
        "--quick", action="store_true", help="a few steps of a small model, to see that all of it works"
    )
    chosen = parser.parse_args()
    if chosen.quick:
        chosen.every, chosen.timed, chosen.depth, chosen.steps = 5, 4, 1, [20] * len(chosen.tokens)
    if len(chosen.steps) != len(chosen.tokens):
        parser.error("--steps needs as many numbers as --tokens")
    chosen.steps = dict(zip(chosen.tokens, chosen.steps, strict=True))
    return chosen


def main() -> None:
    chosen = read_options()
    results = Results(chosen.results)
    if not chosen.show:
        with tempfile.TemporaryDirectory(prefix="clusterctl-bench-") as data, network(NODES) as net:
            make_text(Path(data))
            names = ("every", "learning_rate", "outer_rate", "outer_momentum", "depth", "seed")
            bench = Bench(net, results, chosen, {"data": data, **{name: getattr(chosen, name) for name in names}})
            for tokens in chosen.tokens:
                for contender in chosen.contenders if chosen.only != "seconds" else ():
                    bench.measure_losses(tokens, contender)
                if chosen.only == "losses":
                    continue
                bench.measure_seconds(tokens, 0, "compute")
                for rate in chosen.rates:
                    for contender in ("allreduce", *chosen.contenders):
                        bench.measure_seconds(tokens, rate, contender)
    show_all(results, chosen)


if __name__ == "__main__":
    main()
