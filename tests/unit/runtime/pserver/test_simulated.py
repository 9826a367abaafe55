"""Runs whose events come in random order: whatever is killed, lost or late, they end, and their checkpoints agree."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import redirect_stdout
from functools import partial
from io import StringIO
from typing import Any

import pytest

from clusterctl.agent.lead.actions import Action, SendOrder
from clusterctl.agent.lead.saving.cuts import CutCoordinator
from clusterctl.common.manifest import pass_of
from clusterctl.common.modes import Mode, SaveInterval
from clusterctl.runtime.checkpoint.writer import Save
from clusterctl.runtime.modes import EACH_PASS
from clusterctl.runtime.pserver.copying import LaneCopies
from clusterctl.runtime.pserver.core import ServerCore
from clusterctl.runtime.pserver.lane_state import LaneState, Output, Reply
from clusterctl.runtime.table.sharding import Layout
from clusterctl.runtime.wire import messages as wire
from unit.runtime.pserver.simulation import (
    Checkpoint,
    Setting,
    SimulatedLane,
    SimulatedLink,
    SimulatedPServer,
    Trainer,
    to_bytes,
)

SLOW = [pytest.param(mode, marks=pytest.mark.slow) for mode in ("half-async", "ssp(0)")]
MODES = ["async", "ssp(1)", "geo(2)", *SLOW]
LAYOUTS = [Layout(1), Layout(2), Layout(3), Layout(1, 1, 1), Layout(2, 1, 1)]
FAULTS_WITHIN = 400  # moves; a run takes about as many
MOST_MOVES = 20_000
PROBES = LOOKS = 0.01  # of all moves
LOST_WITH_SENDER = 0.5  # of the messages that were on their way when a trainer was killed


class SimulatedRun:
    """A run in which `lot` chooses each move, and when a fault occurs. A context manager, which ends its threads."""

    def __init__(self, setting: Setting, lot: random.Random) -> None:
        self._setting = setting
        self._layout = setting.layout
        self._lot = lot
        self._epoch = 0
        self._checkpoint: Checkpoint | None = None
        self._files: dict[tuple[bool, str], list[Save]] = {}  # of checkpoints (True) and models, by tag
        self._last: dict[int, Save] = {}  # by pserver, the newest model of a pass
        self._trainers: dict[int, Trainer] = {}
        self._dropped: dict[int, int] = {}  # by rank, the pushes that are known
        self._attempts: list[Trainer] = []  # of this epoch, including those that were killed
        self._pservers = [self._new_pserver(rank) for rank in range(self._layout.pservers)]
        self._lead = CutCoordinator(range(self._layout.pservers), self._layout.pservers)
        faults = [self._announce] * setting.checkpoints + [self._kill] * setting.killed
        faults += [self._drop] * setting.dropped + [self._lose_pserver] * setting.lost_pservers
        self._faults = dict(zip(lot.sample(range(FAULTS_WITHIN), len(faults)), faults, strict=True))

    def __enter__(self) -> SimulatedRun:
        for rank in range(len(self._setting.batches)):
            self._start(rank, attempt=1)
        return self

    def __exit__(self, *_: object) -> None:
        for trainer in self._trainers.values():
            trainer.kill()

    def run(self) -> None:
        """Run until all trainers have left. Raises AssertionError if they never do, or the error of one of them."""
        for number in range(MOST_MOVES):
            if not self._working():
                self._end()
                return
            self._faults.get(number, self._move)()
        raise AssertionError(f"no end after {MOST_MOVES} moves")

    def _end(self) -> None:
        """Write what is left. Raises AssertionError unless the last model has all pushes on all pservers.

        A new pserver does not know the last pass of a trainer that left before.
        """
        for lane in range(self._layout.lanes):
            self._settle(lane)
        for rank, pserver in enumerate(self._pservers):
            while pserver.files:
                self._write(rank)
        if self._setting.lost_pservers or self._setting.dropped:
            return
        steps = [max(lane.core.step for lane in p.lanes if lane.core.tables) for p in self._pservers]
        saved = [(self._last[rank].tag, self._last[rank].step) for rank in range(len(steps))]
        assert len({tag for tag, _ in saved}) == 1, f"no last model: {saved}"
        assert [step for _, step in saved] == steps, f"the last model lacks pushes: {saved}, not {steps}"

    def _working(self) -> list[Trainer]:
        return [trainer for trainer in self._trainers.values() if trainer.pushes is None]

    def _start(self, rank: int, attempt: int) -> None:
        self._trainers[rank] = Trainer(self._setting, rank, attempt)
        self._attempts.append(self._trainers[rank])

    def _new_pserver(self, rank: int) -> SimulatedPServer:
        first = rank * self._layout.per_pserver
        return SimulatedPServer([self._new_core(lane) for lane in range(first, first + self._layout.per_pserver)])

    def _new_core(self, lane: int) -> ServerCore:
        setting, mode = self._setting, Mode.parse(self._setting.mode)
        trainers = len(setting.batches)
        every = (setting.save_every, setting.save_model_every)
        copying = LaneCopies(in_slices=setting.slices)
        state = LaneState(lane, self._layout, trainers, 7, mode, *every, epoch=self._epoch, copying=copying)
        left = {rank: trainer.pushes for rank, trainer in self._trainers.items() if trainer.pushes is not None}
        core = ServerCore(state, None, self._checkpoint, {**self._dropped, **left})
        core.greeting["ports"] = [0] * self._layout.per_pserver
        return core

    def _lane(self, number: int) -> SimulatedLane:
        pserver, index = divmod(number, self._layout.per_pserver)
        return self._pservers[pserver].lanes[index]

    # Moves

    def _move(self) -> None:
        if self._lot.random() < PROBES:
            self._probe(self._lot.choice(self._working()))
        elif self._lot.random() < LOOKS:
            self._look()
        elif moves := list(self._moves()):
            self._lot.choice(moves)()
        elif not any([self._probe(trainer) for trainer in self._working()] + [self._look() for _ in range(20)]):
            raise AssertionError(f"a hang; unanswered requests by trainer and lane: {self._pending()}")

    def _moves(self) -> Iterator[Callable[[], object]]:
        """Yield everything that may happen next."""
        lanes = range(self._layout.lanes)
        yield from (trainer.resume for trainer in self._working() if trainer.is_ready)
        for trainer in self._attempts:
            yield from (partial(self._deliver, trainer, lane) for lane in lanes if trainer.link.sent[lane])
        for trainer in self._working():
            yield from (partial(self._answer, trainer.link, lane) for lane in lanes if trainer.link.replies[lane])
        yield from (partial(self._write, rank) for rank, pserver in enumerate(self._pservers) if pserver.files)
        yield from (partial(self._do_task, lane) for lane in lanes if self._lane(lane).ready_tasks)
        yield from (partial(self._copy, lane) for lane in lanes if self._lane(lane).core.state.copying.is_under_way)
        yield from (partial(self._report, rank) for rank, pserver in enumerate(self._pservers) if pserver.reports)
        yield from (pserver.obey for pserver in self._pservers if pserver.orders)

    def _probe(self, trainer: Trainer) -> bool:
        return any(trainer.link.probe(lane, self._lane(lane).core) for lane in range(self._layout.lanes))

    def _pending(self) -> dict[int, list[list[int]]]:
        """Return the kinds of the unanswered requests, by trainer and lane."""
        links = {trainer.rank: trainer.link for trainer in self._working()}
        return {rank: [[m.kind for m, *_ in sent.values()] for sent in link.pending] for rank, link in links.items()}

    def _deliver(self, trainer: Trainer, lane: int) -> None:
        frames = trainer.link.sent[lane].popleft()
        is_alive = self._trainers.get(trainer.rank) is trainer
        if self._lot.random() >= (self._setting.loss if is_alive else LOST_WITH_SENDER):
            self._send(lane, self._lane(lane).core.handle(trainer.rank, wire.decode(frames)))

    def _answer(self, link: SimulatedLink, lane: int) -> None:
        if self._lot.random() < self._setting.loss:
            link.replies[lane].popleft()
        else:
            link.take(lane)

    def _do_task(self, lane: int) -> None:
        self._send(lane, self._lane(lane).core.do(self._lane(lane).ready_tasks.popleft()))

    def _copy(self, lane: int) -> None:
        """Copy a slice of a lane's tables."""
        core = self._lane(lane).core
        self._send(lane, core.copy())
        if not core.state.copying.holds:
            self._send(lane, core.go_on())

    def _settle(self, lane: int) -> None:
        """Do all that a lane has to do."""
        while self._lane(lane).core.state.copying.is_under_way or self._lane(lane).ready_tasks:
            (self._do_task if self._lane(lane).ready_tasks else self._copy)(lane)

    def _send(self, lane: int, outputs: Sequence[Output]) -> None:
        """Send a lane's replies to the newest attempts of the trainers, and its saves to its pserver."""
        for output in outputs:
            if not isinstance(output, Reply):
                self._pservers[lane // self._layout.per_pserver].take(self._lane(lane), output)
            elif output.rank in self._trainers:
                self._trainers[output.rank].link.replies[lane].append(to_bytes(output.message))

    def _write(self, rank: int) -> None:
        file = self._pservers[rank].write()
        if pass_of(file.tag) is not None:
            self._last[rank] = file
        files = self._files.setdefault((file.checkpoint, file.tag), [])
        files.append(file)
        if len(files) == self._layout.pservers:
            if file.checkpoint:
                self._checkpoint = Checkpoint(files)
            self._carry_out(self._lead.written(file.tag, file.checkpoint))

    def _report(self, rank: int) -> None:
        report: Any = {"do": "cut", "role": "pserver", "rank": rank, **self._pservers[rank].reports.popleft()}
        self._carry_out(self._lead.take(report))

    def _carry_out(self, actions: Sequence[Action]) -> None:
        for action in actions:
            if isinstance(action, SendOrder):
                assert action.node is not None
                self._pservers[action.node].orders.append(dict(action.message))

    def _look(self) -> bool:
        """Let a pserver's patience end; return True if it gives up."""
        pserver = self._lot.choice(self._pservers)
        before = len(pserver.reports)
        pserver.cuts.look(self._lead.number)
        return len(pserver.reports) > before

    # Faults

    def _announce(self) -> None:
        self._send(0, self._lane(0).core.request_cut())

    def _kill(self) -> None:
        trainer = self._lot.choice(self._working())
        trainer.kill()
        self._start(trainer.rank, trainer.attempt + 1)

    def _drop(self) -> None:
        """Continue without one of the trainers, unless it is the last."""
        if len(self._trainers) > 1:
            rank = self._lot.choice(self._working()).rank
            self._trainers.pop(rank).kill()
            self._dropped[rank] = 0
            for lane in range(self._layout.lanes):
                self._lane(lane).tasks.append(lambda core: core.drop([rank]))

    def _lose_pserver(self) -> None:
        """Replace a pserver, and restart all trainers that have not left. Incomplete checkpoints are void."""
        self._epoch += 1
        self._files.clear()
        self._attempts.clear()
        self._lead.reset(self._checkpoint.step if self._checkpoint else 0)
        rank = self._lot.randrange(self._layout.pservers)
        self._pservers[rank] = self._new_pserver(rank)
        for lane in range(self._layout.lanes):
            self._settle(lane)
            self._send(lane, self._lane(lane).core.do(lambda core: core.begin_epoch(self._epoch)))
            self._settle(lane)
        for pserver in self._pservers:
            pserver.reports.clear()
            pserver.orders.clear()
            pserver.cuts.reset()
        for trainer in self._working():
            trainer.kill()
            self._start(trainer.rank, trainer.attempt + 1)


def simulate(draw: Callable[[random.Random], Setting], runs: int) -> None:
    """Simulate runs with the seeds 0, 1, ... and settings from `draw`. Raises AssertionError, which names the seed."""
    for seed in range(runs):
        lot = random.Random(seed)
        setting = draw(lot)
        try:
            with redirect_stdout(StringIO()), SimulatedRun(setting, lot) as run:  # trainers print their progress
                run.run()
        except Exception as failure:
            raise AssertionError(f"seed {seed}, {setting}: {failure}") from failure


def draw_batches(lot: random.Random, most: int = 6) -> tuple[int, ...]:
    return tuple(lot.randint(1, most) for _ in range(lot.choice([2, 2, 3])))


def draw_setting(mode: str, lot: random.Random) -> Setting:
    """Draw a run with any faults. In sync, no table is late, and a lost pserver would roll back the others."""
    return Setting(
        mode,
        lot.choice(LAYOUTS),
        draw_batches(lot),
        late=lot.random() < 0.4 and mode != "sync",
        save_every=lot.choice([None, None, SaveInterval("step", 2), SaveInterval("pass", 1)]),
        save_model_every=lot.choice(
            [EACH_PASS, SaveInterval("pass", 2), SaveInterval("step", 3), SaveInterval("s", 9), SaveInterval("end", 0)]
        ),
        checkpoints=lot.randrange(8),
        loss=lot.choice([0.0, 0.0, 0.05]),
        killed=lot.randrange(5),
        dropped=lot.choice([0, 0, 0, 1]),
        lost_pservers=lot.choice([0, 0, 1, 2]) if mode != "sync" else 0,
        slices=lot.random() < 0.6,
    )


@pytest.mark.parametrize("mode", ["sync", *MODES])
@pytest.mark.parametrize("runs", [12, pytest.param(60, marks=pytest.mark.slow)])
def test_every_run_ends_and_its_checkpoints_agree(mode: str, runs: int) -> None:
    simulate(partial(draw_setting, mode), runs)


@pytest.mark.parametrize("mode", MODES)
def test_a_new_pserver_whose_first_lane_has_no_tables_learns_where_the_trainers_are(mode: str) -> None:
    def draw(lot: random.Random) -> Setting:
        return Setting(mode, Layout(2, 1, 1), draw_batches(lot), dense=False, killed=2, lost_pservers=1)

    simulate(draw, runs=4)


@pytest.mark.parametrize("mode", MODES)
def test_a_checkpoint_does_not_wait_for_a_lane_whose_first_table_is_made_late(mode: str) -> None:
    def draw(lot: random.Random) -> Setting:
        return Setting(mode, Layout(2, 1, 1), draw_batches(lot), late=True, checkpoints=20)

    simulate(draw, runs=8)
