"""A trainer's session: the methods that the training program calls."""

from __future__ import annotations

import atexit
import functools
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Callable

from clusterctl.runtime.checkpoint.origin import origin_of
from clusterctl.runtime.environment import Environment
from clusterctl.runtime.errors import UseError
from clusterctl.runtime.modes import check_tag
from clusterctl.runtime.state.keeper import StateKeeper
from clusterctl.runtime.supervisor_socket import SupervisorSocket, print_line
from clusterctl.runtime.table.initializers import Initial, uniform, zeros
from clusterctl.runtime.table.retention import Retention
from clusterctl.runtime.table.rules import Rule
from clusterctl.runtime.table.spec import TableSpec
from clusterctl.runtime.trainer.accumulation import Accumulator
from clusterctl.runtime.trainer.batches import (
    BatchSource,
    OnPass,
    Reader,
    ReaderCursor,
    Source,
    StepContext,
    check_alone,
    checked_loss,
    checked_reader,
    checked_samples,
    pass_rng,
    unpushed,
    whole_number,
)
from clusterctl.runtime.trainer.client import Client
from clusterctl.runtime.trainer.clipping import Clip, checked_clip
from clusterctl.runtime.trainer.geo import make_parameters
from clusterctl.runtime.trainer.guard import Guard
from clusterctl.runtime.trainer.handles import Dense, Embedding, IdsOf, checked_ids_of, given_values
from clusterctl.runtime.trainer.link import Link
from clusterctl.runtime.trainer.nan_policy import NanPolicy
from clusterctl.runtime.trainer.packing import Gradient, Handle, Made, checked_rates
from clusterctl.runtime.trainer.parallel import PartPool, Result, Split, Work
from clusterctl.runtime.trainer.parameters import Prefetcher
from clusterctl.runtime.trainer.progress import Progress
from clusterctl.runtime.wire import messages as wire


class Session:
    """The object that `connect()` returns. Has `rank`, `trainers`, `output_dir` and `step` (global steps done).

    It belongs to the process and the thread that called `connect()`. Any thread may call `log`; all else raises
    UseError in other threads, in forked processes, and after the end of the session.
    """

    def __init__(
        self, env: Environment, link: Link, supervisor: SupervisorSocket, load: str | None, ignore: Sequence[str] = ()
    ) -> None:
        self.rank = 0 if env.local else env.rank
        self.trainers = env.trainers
        self.output_dir = env.output_dir
        self.layout = link.layout
        self.pservers = link.layout.pservers
        self._load, self._guard = load, Guard()
        self._handles: dict[int, Handle] = {}
        self._context: StepContext | None = None
        self._progress = Progress(supervisor)
        self._client = Client(env, link, self.rank, self._progress, self._refresh, load)
        self._progress.joined(self._client.step)
        self._states = StateKeeper(env, self._client, supervisor)
        self._nan_policy = NanPolicy(env.on_nan, self.rank, self._client.half, self._progress)
        self._parameters = make_parameters(self._client, self.trainers, self._guard, self._nan_policy)
        declared, saved = lambda: {handle.name for handle in self._handles.values()}, self._client.saved
        warn = self._progress.warn_of_run if self._client.is_lowest else None
        self._origin = origin_of(env, saved, load, ignore, declared, warn)
        self._parameters.before_push = self._origin.before_push
        self.mode, self.seed = self._client.mode.name, self._client.seed
        self._next_pass, self._batch, self._skip = self._client.next_pass, self._client.batch, self._client.batch
        # An earlier attempt ended a pass. It may have died before its save, or when only some lanes knew of that.
        self._pass_is_over = self._client.passes_done >= self._next_pass > 0
        self._rejoins = self._client.passes_done < self._next_pass or (self._pass_is_over and self._batch == 0)
        self._open_pass = self._next_pass - 1 if self._rejoins else None
        self._position, others, resized = self._client.position, bool(self._client.positions), self._client.resized
        self._cursor = ReaderCursor(self._position, has_others=others, resized=resized)
        self._rates: Mapping[Handle, float] = {}
        self._first_pass, self._accumulate, self._sharded = 0, 1, False
        self._collected: Accumulator[Handle] = Accumulator()
        self._clip: Clip | None = None
        self._parts = PartPool(env.trainer_threads, self.rank)
        self._prefetcher = Prefetcher(self._parameters, self.mode)

    def __enter__(self) -> Session:
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
                self._parameters.settle()
                self._origin.report()
                self._progress.flush(self.step)
                self._progress.flush_log()
                say()
        finally:
            self._guard.end()
            self._client.close()
            self._parts.close()

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

    # Tables

    def dense(
        self, name: str, shape: int | Sequence[int], rule: Rule, init: Initial | None = None, *, wire: str | None = None
    ) -> Dense:
        """Make a dense float32 table of `shape`, zeros without `init`. Every trainer must declare it the same way.

        `wire` is for the outer mode: with "int8" or "int4" gradients and changes of `value` are sent in so many bits.
        Only in sync mode. Do not write to `value` then: a push adds to it.
        """
        sizes = (shape,) if isinstance(shape, int) else tuple(int(n) for n in shape)
        spec, unset = self._spec(name, "dense", sizes, rule, init or zeros(), wire=wire)
        return self._begun(Dense(self._parameters, spec), unset)

    def embedding(
        self,
        name: str,
        dim: int,
        rule: Rule,
        init: Initial | None = None,
        rows: int | None = None,
        retention: Retention | None = None,
    ) -> Embedding:
        """Make a sparse float32 table of width `dim`; ids are any int64, or 0..rows-1. Without `init`: uniform(0.1).

        `retention` decides which ids get a row and which rows are removed; without it every pushed id has a row.
        """
        initial = init or uniform(0.1)
        spec, unset = self._spec(name, "sparse", (int(dim),), rule, initial, rows=rows, retention=retention)
        return self._begun(Embedding(self._parameters, spec), unset)

    def _begun(self, handle: Made, unset: list[int]) -> Made:
        self._handles[handle.spec.key] = handle
        self._parameters.begin(handle, unset)
        return handle

    def _spec(
        self, name: str, kind: str, shape: tuple[int, ...], rule: Rule, init: Initial, **more: Any
    ) -> tuple[TableSpec, list[int]]:
        """Return a table that all its lanes have, and the lanes that have no initial values of it."""
        self._guard.check(f"ps.{'dense' if kind == 'dense' else 'embedding'}")
        spec = TableSpec(name, kind, shape, rule, init, load=self._load, **more)
        given_values(spec, self.rank)  # raises
        lanes = self.layout.places(kind)
        self._parameters.settle()
        pass_ = self._next_pass if self._rejoins or self._open_pass is None else self._open_pass
        at = {"pass_": pass_, "batch": self._batch, "step": self._client.step}
        place = {"cursor": self._client.position}
        if 0 not in lanes and self.mode != "sync":  # it gets all pushes, and may be new
            self._client.ask(wire.CREATE, [0], **at, parts=[wire.json_part(place)])
        replies = self._client.ask(wire.CREATE, lanes, **at, parts=[wire.json_part({**spec.to_json(), **place})])
        self._client.use(lanes, reply_bytes=4 * spec.elements if kind == "dense" else 0)
        if self.rank == 0 and any(reply.json().get("initial") for reply in replies.values()):
            print_line(f"table {name!r} is not in {self._load}; it starts from its initial values")
        return spec, [lane for lane, reply in replies.items() if reply.json().get("unset")]

    # Steps

    def steps(
        self,
        reader: Reader,
        passes: int | None,
        shard: bool = False,
        accumulate: int = 1,
        prefetch: int = 0,
        ids: IdsOf | None = None,
        on_pass: OnPass | None = None,
        clip: Clip | None = None,
        pass_batches: int | None = None,
    ) -> Iterator[Any]:
        """Yield the batches of `passes` passes; end each with one `push`.

        `reader(pass_, rng)` yields this trainer's batches, or with `shard=True` all trainers' batches, of which each
        trainer takes every M-th. One batch is read ahead (or `prefetch`, if more), so a reader must not reuse the
        memory of earlier batches. `on_pass(pass_)` runs on every trainer after the last update of a pass and before
        its save. Passes are numbered through the run, over all loops. A batch may end without a push.

        `accumulate=k` sends one push for k batches, with the mean of their gradients, weighted by samples. With
        `prefetch=n` and `ids={embedding: f}` the rows of `f(batch)` are requested up to n batches ahead: in sync mode
        they still have the values of their step, in the other modes they are as old as the request. `clip` is applied
        to the whole gradient before it is sent.

        With `pass_batches=n` the reader is called once, and a pass ends after n batches of each trainer while the
        reader goes on; the loop ends with the reader, or after `passes` passes, None for any number. Such a stream, or
        one with `passes=None`, is not read ahead, unless `prefetch` says so.
        """
        self._guard.check("ps.steps")
        self._accumulate = whole_number("accumulate", accumulate, 1)
        ahead = whole_number("prefetch", prefetch, 0)
        self._clip = checked_clip(clip)
        known_ids = checked_ids_of(ids or {}, self._handles)
        self._prefetcher.ids_of = known_ids if ahead else {}
        length = None if pass_batches is None else whole_number("pass_batches", pass_batches, 1)
        streams = passes is None or length is not None
        number = whole_number("passes", passes, 0) if passes is not None else 1 if length is None else None
        share_of = self._client.share_of if shard else None
        rng = functools.partial(pass_rng, self.seed, self.rank, shard=shard)
        source = functools.partial(BatchSource, checked_reader(reader), self._cursor, rng, share_of)
        self._sharded = shard
        return self._run(lambda base: source(base, length, ahead if streams else max(1, ahead)), number, on_pass)

    def _run(self, source_from: Callable[[int], Source], passes: int | None, on_pass: OnPass | None) -> Iterator[Any]:
        begins = self._next_pass - self._rejoins if self._open_pass is None or self._rejoins else -1
        if passes is not None and begins >= self._first_pass + passes:  # an earlier attempt died in a later loop
            self._first_pass += passes
            return
        self._states.begin(self._next_pass, self._batch)
        if self._open_pass is not None:  # an earlier loop ended by break, or an earlier attempt died before its save
            self._finish_pass(flagged=self._rejoins)
            self._states.repeat_on_pass(on_pass, self._open_pass)
            self._save_pass(repeated=self._rejoins and self._pass_is_over)
            self._first_pass = self._first_pass if self._rejoins else self._next_pass
        self._rejoins = False
        if self._client.left:  # an earlier attempt had left the run, and died at its very end
            return
        source, after = source_from(self._first_pass), None if passes is None else self._first_pass + passes
        while after is None or self._next_pass < after:
            pass_, batch, self._skip = self._next_pass, self._skip, 0
            if not source.begin(pass_, batch) and not batch:
                break
            self._open_pass = pass_
            self._progress.begin_pass(pass_, after)
            yield from self._batches(source.batches(pass_, batch))
            self._progress.end_pass(self.step)
            if on_pass is not None:
                on_pass(pass_)
            check_alone(self._open_pass == pass_)
            self._origin.report()
            self._save_pass()
        self._first_pass = self._next_pass = self._next_pass if after is None else after

    def _batches(self, batches: Iterator[tuple[Any, StepContext]]) -> Iterator[Any]:
        context = None
        for batch, context in batches:
            self._guard.check("ps.steps")
            self._context = context
            self._nan_policy.begin_batch()
            yield batch
            check_alone(self._context is context)
            self._states.take(context.pass_, context.batch + 1)
        self._finish_pass(flagged=context is not None and context.last and context.pushed)

    def _finish_pass(self, flagged: bool) -> None:
        """Report this trainer's end of the open pass; in sync mode take empty steps until all trainers end it."""
        self._context = None
        pass_ = self._open_pass or 0
        self._parameters.settle()
        while not flagged or (self.mode == "sync" and self._client.passes_done <= pass_):
            batches = self._collected.batches
            gradient, samples = self._merged(*self._collected.take(), batches)
            end = StepContext(pass_, self._batch, True, [], self._sharded, self._position, self._rates)
            self._parameters.push(gradient, end, samples)
            self._parameters.settle()
            self._progress.alive()
            self._batch += 1
            self._states.take(pass_, self._batch)
            flagged = True

    def _save_pass(self, *, repeated: bool = False) -> None:
        self._progress.flush_log()
        pass_ = self._open_pass or 0
        self._parameters.settle()
        self._states.end_pass(pass_)
        self._client.end_pass(f"pass-{pass_:05d}", repeated=repeated)
        self._open_pass, self._next_pass, self._batch = None, pass_ + 1, 0

    def push(
        self,
        gradients: Mapping[Handle, Any],
        samples: int,
        loss: float | None = None,
        rates: Mapping[Handle, float] | None = None,
    ) -> None:
        """End the step of the current batch, and refresh the `value` of dense tables.

        `gradients` maps handles to means over the batch: an array of the table's shape, or `(ids, rows)`, or torch
        tensors. `samples` (an integer >= 0) is their weight among the trainers; with 0 they change nothing. In sync
        mode it returns when the step is applied; in async mode values may lag behind by the pushes in flight. The
        caller may reuse the arrays when it returns.

        `rates` maps tables to the learning rates of this push, instead of `lr` of their rules. In sync mode those of
        the lowest rank with samples count; with `accumulate`, those of the last batch. Not in geo mode.
        """
        self._guard.check("ps.push")
        context = unpushed(self._context)
        step, context.rates = self._parameters.step, checked_rates(rates, self._handles, self.mode)
        count, value = checked_samples(samples, self.rank, step), checked_loss(loss)
        gradient = Gradient.checked(gradients, self._handles)
        alone = self._accumulate == 1
        gradient = self._clipped(gradient) if alone and self._clip is not None else gradient
        if count and not self._nan_policy.admits(step, gradient, value, as_sent=alone):
            gradient, count, value = Gradient(), 0, None
        context.pushed = True
        self._batch, self._position, self._rates = context.batch + 1, context.position, context.rates
        self._send(gradient, context, count)
        self._progress.stepped(self._parameters.step, count, value)

    def parallel(self, f: Work, batch: Any, parts: int | None = None, split: Split | None = None) -> Result:
        """Return the arguments of `push`, merged from `f(part) -> (gradients, samples, loss)`, which runs in threads.

        An array, or a tuple of arrays of one length, is cut by rows into `parts` (TRAINER_THREADS) parts; anything else
        by `split(batch, parts)`. `f` may call nothing of the session but `log`.
        """
        self._guard.check("ps.parallel")
        return self._parts.run(f, batch, parts, split, self.step)

    def _send(self, gradient: Gradient, context: StepContext, samples: int) -> None:
        if self._accumulate > 1:
            tables, batches = gradient.by_table(), self._collected.batches + 1
            if batches < self._accumulate and not context.last:
                self._collected.add(tables, samples)
                self._prefetcher.request(context)
                return
            gradient, samples = self._merged(*self._collected.last(tables, samples), batches)
        self._parameters.push(gradient, context, samples, functools.partial(self._prefetcher.request, context))

    def _merged(self, tables: Mapping[Handle, Any], samples: int, batches: int) -> tuple[Gradient, int]:
        """Return several batches as one gradient. It is checked again, since the sum may overflow."""
        gradient = self._clipped(Gradient.checked_again(tables))
        if samples and not self._nan_policy.admits(self.step, gradient, batches=batches):
            return Gradient(), 0
        return gradient, samples

    def _clipped(self, gradient: Gradient) -> Gradient:
        return gradient if self._clip is None else gradient.replaced(self._clip.apply(gradient.arrays()))

    def _refresh(self, parts: list[wire.Part]) -> None:
        for part in parts:
            if isinstance(handle := self._handles.get(part.table), Dense):
                self._parameters.refresh(handle, part)

    # Saves and metrics

    def save(self, tag: str) -> None:
        """Save all tables, as they are after the current step, under `output_dir/tag/`; the first call wins."""
        self._guard.check("ps.save")
        if check_tag(tag).startswith(("pass-", "at-step-")):
            raise UseError(f"tag {tag!r} is reserved for models that are saved without a call", remedy="choose another")
        self._parameters.settle()
        self._client.ask_all(wire.SAVE, parts=[wire.json_part({"tag": tag})])

    def log(self, weight: float = 1, **numbers: float) -> None:
        """Report named numbers; they are averaged over trainers and time, weighted by `weight`. Thread-safe."""
        self._progress.log(self.step, self._client.step, numbers, weight)
