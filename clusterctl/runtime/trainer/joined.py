"""A trainer's session as a member of the run: how it joins and leaves, and where it is."""

from __future__ import annotations

import atexit
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Callable

from clusterctl.runtime.checkpoint.origin import origin_of
from clusterctl.runtime.environment import Environment
from clusterctl.runtime.state.files import AssignedValues
from clusterctl.runtime.state.keeper import StateKeeper
from clusterctl.runtime.state.loops import Loops
from clusterctl.runtime.supervisor_socket import SupervisorSocket
from clusterctl.runtime.table.spec import TensorNames
from clusterctl.runtime.trainer.accumulation import Accumulator
from clusterctl.runtime.trainer.batches import ReaderCursor, StepContext
from clusterctl.runtime.trainer.client import Client
from clusterctl.runtime.trainer.clipping import Clip
from clusterctl.runtime.trainer.geo import make_parameters
from clusterctl.runtime.trainer.guard import Guard
from clusterctl.runtime.trainer.handles import Dense, Embedding, IdsOf
from clusterctl.runtime.trainer.link import Link
from clusterctl.runtime.trainer.nan_policy import NanPolicy
from clusterctl.runtime.trainer.packing import Handle
from clusterctl.runtime.trainer.parallel import PartPool
from clusterctl.runtime.trainer.parameters import Parameters
from clusterctl.runtime.trainer.progress import ProgressReporter
from clusterctl.runtime.wire import messages as wire


class Prefetcher:
    """Requests the rows of each batch once, for the embeddings that `ids_of` names."""

    def __init__(self, parameters: Parameters, mode: str) -> None:
        self.ids_of: IdsOf = {}
        self._parameters = parameters
        self._is_sync = mode == "sync"
        self._requested: dict[Embedding, tuple[int, int]] = {}

    def request(self, context: StepContext) -> None:
        """Request the rows of the batches ahead that were not requested yet."""
        batches = context.ahead[:1] if self._is_sync else context.ahead
        for handle, ids_of in self.ids_of.items():
            for number, batch in enumerate(batches, context.batch + 1):
                if self._requested.get(handle, (-1, -1)) < (context.pass_, number):
                    self._requested[handle] = (context.pass_, number)
                    self._parameters.prefetch(handle, handle.id_batch(ids_of(batch)), len(batches))


class JoinedSession:
    """The state of a session, and its beginning and end."""

    def __init__(
        self, env: Environment, link: Link, supervisor: SupervisorSocket, load: str | None, ignore: Sequence[str] = ()
    ) -> None:
        self.rank = 0 if env.local else env.rank
        self.trainers = env.trainers
        self.output_dir = env.output_dir
        self.layout = link.layout
        self.pservers = link.layout.pservers
        self._load = load
        self._guard = Guard()
        self._handles: dict[int, Handle] = {}
        self._names = TensorNames()
        self._context: StepContext | None = None
        self._progress = ProgressReporter(supervisor)
        self._client = Client(env, link, self.rank, self._progress, self._refresh, load)
        self._progress.joined(self._client.step)
        self._states = StateKeeper(env, self._client, supervisor)
        self._shrinks = env.spec.failures.on_trainer_loss == "shrink"
        self._nan_policy = NanPolicy(env.on_nan, self.rank, self._client.half, self._progress)
        self._parameters = make_parameters(self._client, self.trainers, self._guard, self._nan_policy)
        declared, saved = lambda: {handle.name for handle in self._handles.values()}, self._client.saved
        warn = self._progress.warn_of_run if self._client.is_lowest else None
        self._origin = origin_of(env, saved, load, ignore, declared, warn)
        self._parameters.before_push = self._origin.before_push
        assigned = AssignedValues(self._parameters.assigned, self._parameters.tables)
        self._states.add(assigned.name, assigned, late=True)
        self.mode, self.seed = self._client.mode.name, self._client.seed
        self._next_pass, self._batch, self._skip = self._client.next_pass, self._client.batch, self._client.batch
        # An earlier attempt ended a pass. It may have died before its save, or when only some lanes knew of that.
        self._pass_is_over = self._client.passes_done >= self._next_pass > 0
        self._rejoins = self._client.passes_done < self._next_pass or (self._pass_is_over and self._batch == 0)
        self._open_pass = self._next_pass - 1 if self._rejoins else None
        self._loops = Loops(self._next_pass - self._rejoins, self._states.known_loops, self._states.is_before)
        self._states.record_loops = self._loops.record
        self._position, others, resized = self._client.position, bool(self._client.positions), self._client.resized
        self._cursor = ReaderCursor(self._position, has_others=others, resized=resized)
        self._rates: Mapping[Handle, float] = {}
        self._accumulate, self._sharded = 1, False
        self._collected: Accumulator[Handle] = Accumulator()
        self._clip: Clip | None = None
        self._parts = PartPool(env.trainer_threads, self.rank)
        self._prefetcher = Prefetcher(self._parameters, self.mode)

    def __enter__(self) -> JoinedSession:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if not self._guard.is_of_this_process:  # a fork of the program does not leave the run
            return
        atexit.unregister(self.leave_at_exit)
        clean = error is None or (isinstance(error, SystemExit) and error.code in (None, 0))
        self._leave(self._say_goodbye if clean else None)

    def leave_at_exit(self) -> None:
        """Leave the run at the end of a program that did not use `with`, unless an uncaught exception ends it.

        The exit code is not known here. The supervisor waits for it and informs the pservers if it is 0.
        """
        if not self._guard.is_of_this_process or hasattr(sys, "last_value"):
            return
        self._leave(self._announce_exit)

    def _leave(self, say: Callable[[], None] | None) -> None:
        self._guard.check("leaving the run")
        try:
            if say is not None:
                if not self._client.left:
                    self._loops.check_end(waits=self._states.waits)
                self._parameters.settle()
                self._origin.report()
                if self._parameters.assigned and not self._parameters.is_saved and not self._client.left:
                    self._save_now(f"pass-{self._next_pass:05d}")  # values that were given after the last save
                self._progress.flush(self.step)
                self._progress.flush_log()
                say()
        finally:
            self._guard.end()
            self._client.close()
            self._parts.close()

    def _save_now(self, tag: str) -> None:
        """Save all tables as they are after the current step, and with the values that the program has given since."""
        self._parameters.settle()
        self._parameters.send_assigned(by_all=True)
        self._parameters.is_saved = True
        assigned = self._parameters.sketches()
        facts = {"tag": tag, "assigned": assigned} if assigned else {"tag": tag}
        self._client.ask_all(wire.SAVE, step=self._client.step, parts=[wire.json_part(facts)])

    def _say_goodbye(self) -> None:
        self._client.ask_all(wire.BYE)
        self._states.leave(self._next_pass, self._batch)
        self._progress.done(self._client.step)

    def _announce_exit(self) -> None:
        self._progress.leaving(self._client.step)

    @property
    def step(self) -> int:
        return self._parameters.step

    @property
    def cursor(self) -> Any:
        """The reader's place in its data: set it in the reader before `yield`, to any JSON of up to 4 kB.

        It belongs to the batch yielded next. When the reader is called to continue, in a resumed run or after a
        restart, it has the value of the last batch that counts; no batch is skipped then. None if there is none.
        """
        return self._cursor.value

    @cursor.setter
    def cursor(self, value: Any) -> None:
        self._cursor.set(value)

    @property
    def cursors(self) -> list[Any]:
        """The cursors of all trainers by rank, if the run was resumed with another number of them; else empty."""
        return list(self._client.positions)

    def _refresh(self, parts: list[wire.Part]) -> None:
        for part in parts:
            if isinstance(handle := self._handles.get(part.table), Dense):
                self._parameters.refresh(handle, part)
