"""A trainer's session: the methods that the training program calls."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Callable

from clusterctl.runtime.errors import UseError
from clusterctl.runtime.modes import check_tag
from clusterctl.runtime.state.files import Marker
from clusterctl.runtime.state.loops import Batches, Site
from clusterctl.runtime.table.initializers import Initial, uniform, zeros
from clusterctl.runtime.table.retention import Retention
from clusterctl.runtime.table.rules import Rule
from clusterctl.runtime.table.spec import TableSpec
from clusterctl.runtime.trainer.batches import (
    BatchSource,
    OnPass,
    Reader,
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
from clusterctl.runtime.trainer.clipping import Clip, checked_clip
from clusterctl.runtime.trainer.handles import Dense, Embedding, IdsOf, checked_ids_of
from clusterctl.runtime.trainer.joined import JoinedSession
from clusterctl.runtime.trainer.packing import Gradient, Handle, Made, checked_rates
from clusterctl.runtime.trainer.parallel import Result, Split, Work


class Session(JoinedSession):
    """The object that `connect()` returns. Has `rank`, `trainers`, `output_dir` and `step` (global steps done).

    It belongs to the process and the thread that called `connect()`. Any thread may call `log`; all else raises
    UseError in other threads, in forked processes, and after the end of the session.
    """

    # Tables

    def dense(
        self, name: str, shape: int | Sequence[int], rule: Rule, init: Initial | None = None, *, wire: str | None = None
    ) -> Dense:
        """Make a dense float32 table of `shape`, zeros without `init`. Every trainer must declare it the same way.

        `wire` is for the outer mode: with "int8" or "int4" gradients and changes of `value` are sent in so many bits.
        Only in sync mode. Do not write to `value` then: a push adds to it.
        """
        sizes = (shape,) if isinstance(shape, int) else tuple(int(n) for n in shape)
        spec = self._spec(name, "dense", sizes, rule, init or zeros(), wire=wire)
        return self._begun(Dense(self._parameters, spec))

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
        spec = self._spec(name, "sparse", (int(dim),), rule, initial, rows=rows, retention=retention)
        return self._begun(Embedding(self._parameters, spec))

    def _begun(self, handle: Made) -> Made:
        known = self._handles.get(handle.spec.key)
        if isinstance(known, type(handle)) and known.spec.to_json() == handle.spec.to_json():
            return known  # it was declared before
        pass_ = self._next_pass if self._rejoins or self._open_pass is None else self._open_pass
        self._parameters.declare(handle, pass_, self._batch)
        self._handles[handle.spec.key] = handle
        return handle

    def _spec(self, name: str, kind: str, shape: tuple[int, ...], rule: Rule, init: Initial, **more: Any) -> TableSpec:
        """Return the definition of a table, whose name is free for it."""
        self._guard.check(f"ps.{'dense' if kind == 'dense' else 'embedding'}")
        spec = TableSpec(name, kind, shape, rule, init, load=self._load, **more)
        self._names.add(name, kind)
        return spec

    def assign(self, table: Any, value: Any) -> None:
        """Give a dense table a value, of its shape and a float dtype: the next step begins from it.

        Every trainer calls it at the same point, with values that are equal up to rounding; otherwise the next push
        raises TableError. Those of trainer 0 count. `value` of the table has them at once, models that are saved later
        too. The state of the rule stays. Only in sync mode. A program that keeps no state calls it once before its
        loop, if need be with the table's own value. In a resumed run or after a restart, values that are assigned
        before the loop have no effect.
        """
        self._guard.check("ps.assign")
        if self.mode != "sync" or self._shrinks:
            mode = f"{self.mode} mode" if self.mode != "sync" else "ON_TRAINER_LOSS = 'shrink'"
            raise UseError(f"ps.assign does not work with {mode}", remedy='set MODE = "sync", ON_TRAINER_LOSS = "fail"')
        if not isinstance(table, Dense) or self._handles.get(table.key) is not table or table.spec.wire:
            raise UseError(f"ps.assign({type(table).__name__}, ...)", remedy="pass a dense table without `wire`")
        if self._loops.open_pass is not None and self._states.is_empty:
            raise UseError(
                f"ps.assign of table {table.name!r} in a loop of a program that keeps no state",
                remedy="call ps.assign(table, table.value) once before the loop, so that it survives a restart",
            )
        is_old = (self._client.step and not self._loops.has_continued) or self._states.waits
        if not is_old:  # no earlier attempt has assigned it, and trained since
            self._parameters.assign(table, value)
        if self._states.is_empty:
            self._states.add(Marker.name, Marker())

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
        every, ahead = whole_number("accumulate", accumulate, 1), whole_number("prefetch", prefetch, 0)
        clipping, known_ids = checked_clip(clip), checked_ids_of(ids or {}, self._handles)
        length = None if pass_batches is None else whole_number("pass_batches", pass_batches, 1)
        streams = passes is None or length is not None
        number = whole_number("passes", passes, 0) if passes is not None else 1 if length is None else None
        share_of = self._client.share_of if shard else None
        rng = functools.partial(pass_rng, self.seed, self.rank, shard=shard)
        source = functools.partial(BatchSource, checked_reader(reader), self._cursor, rng, share_of)

        def begun(base: int) -> Source:
            self._accumulate, self._clip, self._sharded = every, clipping, shard
            self._prefetcher.ids_of = known_ids if ahead else {}
            return source(base, length, ahead if streams else max(1, ahead))

        return Batches(lambda site: self._run(site, begun, number, on_pass))

    def epochs(self, number: int, passes: int = 1) -> Iterator[int]:
        """Yield the numbers of epochs, 0 to `number` - 1, without those that are done.

        Each epoch has loops over so many passes. In a resumed run, or after a restart, the first epoch is the one that
        was interrupted, also if only code after its loops is left; this needs a state (`ps.keep`), without one the code
        after the last complete loop may run again. Raises UseError for an epoch with another number of passes.
        """
        self._guard.check("ps.epochs")
        return self._loops.epochs(whole_number("number", number, 0), whole_number("passes", passes, 1))

    def _run(
        self, site: Site, source_from: Callable[[int], Source], passes: int | None, on_pass: OnPass | None
    ) -> Iterator[Any]:
        loops = self._loops
        if loops.begin(site, passes):  # an earlier attempt died in a later loop
            self._states.replay()
            return
        after = loops.end_of(passes)
        self._parameters.make_tables()
        self._states.begin(self._next_pass, self._batch, after, rejoins=self._rejoins)
        self._begin_course()
        if self._open_pass is not None:  # an earlier loop ended by break, or an earlier attempt died before its save
            self._finish_pass(flagged=self._rejoins)
            self._states.repeat_on_pass(on_pass, self._open_pass)
            self._save_pass(repeated=self._rejoins and self._pass_is_over)
            loops.first_pass, loops.open_pass = loops.first_pass if self._rejoins else self._next_pass, None
        self._rejoins = False
        if self._client.left:  # an earlier attempt had left the run, and died at its very end
            return
        source = source_from(loops.first_pass)
        while after is None or self._next_pass < after:
            pass_, batch, self._skip = self._next_pass, self._skip, 0
            if not source.begin(pass_, batch) and not batch:
                break
            self._open_pass = loops.open_pass = pass_
            self._progress.begin_pass(pass_, after)
            yield from self._batches(source.batches(pass_, batch))
            self._progress.end_pass(self.step)
            if on_pass is not None:
                on_pass(pass_)
            check_alone(self._open_pass == pass_)
            self._origin.report()
            self._save_pass()
            loops.open_pass = None
        loops.first_pass = self._next_pass = self._next_pass if after is None else after

    def _begin_course(self) -> None:
        """Do what is due when a loop begins, once the state is loaded."""

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
        self._parameters.send_assigned()
        self._parameters.is_saved = True
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
        self._parameters.make_tables()
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
        self._parameters.make_tables()
        return self._parts.run(f, batch, parts, split, self.step)

    def _send(self, gradient: Gradient, context: StepContext, samples: int) -> None:
        if self._accumulate > 1:
            tables, batches = gradient.by_table(), self._collected.batches + 1
            if batches < self._accumulate and not context.last:
                self._collected.add(tables, samples)
                self._prefetch(context)
                return
            gradient, samples = self._merged(*self._collected.last(tables, samples), batches)
        self._parameters.push(gradient, context, samples, functools.partial(self._prefetch, context))

    def _merged(self, tables: Mapping[Handle, Any], samples: int, batches: int) -> tuple[Gradient, int]:
        """Return several batches as one gradient. It is checked again, since the sum may overflow."""
        gradient = self._clipped(Gradient.checked_again(tables))
        if samples and not self._nan_policy.admits(self.step, gradient, batches=batches):
            return Gradient(), 0
        return gradient, samples

    def _clipped(self, gradient: Gradient) -> Gradient:
        return gradient if self._clip is None else gradient.replaced(self._clip.apply(gradient.arrays()))

    def _prefetch(self, context: StepContext) -> None:
        """Request the rows of the batches ahead. Subclasses may know others."""
        self._prefetcher.request(context)

    # Saves and metrics

    def save(self, tag: str) -> None:
        """Save all tables, as they are after the current step, under `output_dir/tag/`; the first call wins."""
        self._guard.check("ps.save")
        if self._loops.is_replaying:  # an earlier attempt has called this, with the values of then
            return
        if check_tag(tag).startswith(("pass-", "at-step-")):
            raise UseError(f"tag {tag!r} is reserved for models that are saved without a call", remedy="choose another")
        self._save_now(tag)

    def log(self, weight: float = 1, **numbers: float) -> None:
        """Report named numbers; they are averaged over trainers and time, weighted by `weight`. Thread-safe."""
        self._progress.log(self.step, self._client.step, numbers, weight)
