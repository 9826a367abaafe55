"""The outer mode: trainers take steps of their own, and push what they have learned once a round.

DiLoCo: Douillard et al. 2023, arXiv 2311.08105. A round ends with one push of sync mode. Its gradient is
`delta = base - local`, where base are the values that the trainers got last; then local and base are the new values.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from clusterctl.runtime import SGD, Momentum
from clusterctl.runtime.environment import Environment
from clusterctl.runtime.errors import UseError
from clusterctl.runtime.table.initializers import Initial
from clusterctl.runtime.table.rules import Rule
from clusterctl.runtime.table.spec import TableSpec
from clusterctl.runtime.trainer import session
from clusterctl.runtime.trainer.batches import StepContext, checked_loss, checked_samples, whole_number
from clusterctl.runtime.trainer.handles import Dense
from clusterctl.runtime.trainer.packing import Gradient
from clusterctl.torch.replica import Replica, trainable

#: The outer rule of the paper.
NESTEROV = Momentum(0.7, 0.9, nesterov=True)


class Outer:
    """What `ps.outer` returns."""

    def __init__(self, step: Callable[[int | None, Any], None]) -> None:
        self._step = step

    def step(self, samples: int | None = None, loss: Any = None) -> None:
        """End an inner step: call it after each `optimizer.step()`. The last one of a round pushes, and waits.

        Without `samples`, those of the batches since the last call count. `loss` is reported.
        """
        self._step(samples, loss)


@dataclass
class _Round:
    """The round so far: its batches, their samples, and the last batch."""

    batches: int = 0
    samples: int = 0
    context: StepContext | None = None


class OuterSession(session.Session):
    """A session with `outer`, whose push may end several batches of a loader."""

    def __init__(self, env: Environment, *args: Any) -> None:
        super().__init__(env, *args)
        self._wire = env.table_wire
        #: The samples of each batch of `loader` since the last push or inner step; None where the number is unknown.
        self._counts: list[int | None] = []
        self._trained_by: str | None = None  # the call that was given a model
        self._replica: Replica | None = None
        self._every = 0  # the batches of a round; 0 without rounds
        self._round = _Round()
        self._is_looping = False

    def outer(self, model: Any, optimizer: Any, every: int = 50, rule: Rule = NESTEROV) -> Outer:
        """Make a dense table of each trainable parameter of `model`; return an object with `step(samples, loss)`.

        `optimizer` is any torch optimizer of the model; it stays the trainer's own. Call `outer.step()` after each
        `optimizer.step()` in a loop over `loader`. A round is `every` batches of each trainer, fewer where its pass or
        loop ends. At its end `base - local` of the trainers, weighted by their samples, is the gradient for `rule`, an
        SGD or a Momentum; all trainers continue with the new values. `step` counts rounds. A loop that ends by `break`
        ends its round with the next loop, `save`, or the end of the session.

        Parameters start from the values of rank 0, or from those of a checkpoint or a loaded model. Sync mode only.
        Raises UseError for anything else; then both objects are as before.
        """
        self._guard.check("ps.outer")
        if self.mode != "sync":
            raise UseError(f"ps.outer does not work in {self.mode} mode", remedy='set MODE to "sync"')
        if self._shrinks:
            raise UseError(
                "ps.outer does not work with ON_TRAINER_LOSS = 'shrink'", remedy='set it to "fail" or "wait"'
            )
        self._check_first("ps.outer")
        if self._is_looping:
            raise UseError("ps.outer in a loop over ps.loader", remedy="call it before the loop")
        if type(rule) not in (SGD, Momentum):
            raise UseError(f"the outer rule is {type(rule).__name__}", remedy="use SGD or Momentum")
        self._add_buffers(model)
        batches, parameters = whole_number("every", every, 1), trainable(model, optimizer)
        self._every = batches
        can_undo = self._nan_policy.policy == "skip"
        dense = functools.partial(self._dense_at, wire=self._wire)
        self._replica = Replica(dense, model, parameters, optimizer, rule, can_undo=can_undo)
        self._trained_by = "ps.outer"
        for name, value, late in self._replica.state():
            self._states.add(name, value, late=late)
        self._states.always = True
        self._keep_state_of(model, optimizer)
        return Outer(self._end_inner_step)

    def _dense_at(
        self, name: str, shape: tuple[int, ...], rule: Rule, init: Initial, *, place: int, wire: str | None = None
    ) -> Dense:
        """Make a table as `dense` does, whose first block has this place."""
        spec = self._spec(name, "dense", tuple(shape), rule, init, wire=wire, place=place)
        return self._begun(Dense(self._parameters, spec))

    def _spec(self, *given: Any, **more: Any) -> TableSpec:
        """Give tables the length of rounds, so that pservers refuse a trainer with another one."""
        return super()._spec(*given, **more, every=self._every or None)

    def _add_buffers(self, model: Any) -> None:
        """Check the names of the buffers of a model."""
        raise NotImplementedError

    def _keep_state_of(self, model: Any, optimizer: Any) -> None:
        """Make the buffers of a model, and gradients that are not used yet, part of this trainer's state."""
        raise NotImplementedError

    def _before_push(self, rates: Mapping[Any, float]) -> None:
        """Do what a push needs: `rates` are the learning rates of the model's optimizer."""
        raise NotImplementedError

    def _check_first(self, call: str) -> None:
        """Raise UseError if the session trains a model already."""
        if self._trained_by is not None:
            again = f"a second {call}" if call == self._trained_by else f"{call} after {self._trained_by}"
            raise UseError(again, remedy="train one model with one optimizer")

    def push(self, *args: Any, **options: Any) -> None:
        """End the step of the current batch as `Session.push` of the runtime does. Raises UseError after `outer`."""
        if self._replica is not None:
            raise UseError("ps.push after ps.outer", remedy="call outer.step()")
        super().push(*args, **options)

    def _counted(self, batches: Iterator[tuple[int | None, Any]]) -> Iterator[Any]:
        """Yield the batches, and count their samples."""
        self._is_looping = True
        try:
            for samples, batch in batches:
                if self._replica is not None:
                    self._replica.begin_round()
                self._counts.append(samples)
                yield batch
        finally:
            self._is_looping = False
            if self._replica is not None:
                self._counts.clear()

    def _samples_of(self, given: int | None, call: str) -> int:
        """Return the samples of the batches since the last push or inner step, unless their number is given."""
        known = [count for count in self._counts if count is not None]
        if given is None and (not known or len(known) < len(self._counts)):
            raise UseError("the number of samples is unknown", remedy=f"call {call}(samples=n)")
        return sum(known) if given is None else given

    def _end_inner_step(self, samples: int | None, loss: Any) -> None:
        self._guard.check("outer.step")
        context = self._context
        if context is None or not self._counts:
            raise UseError("outer.step() without a new batch of ps.loader", remedy="call it once for each batch")
        count = checked_samples(self._samples_of(samples, "outer.step"), self.rank, self.step)
        value = checked_loss(loss.detach() if isinstance(loss, torch.Tensor) else loss)
        if self._nan_policy.policy != "skip":
            self._nan_policy.admits(self.step, Gradient(), value)
        elif value is not None and not math.isfinite(value):
            value = None  # its round will be undone
        batches = self._round.batches + len(self._counts)
        self._round = _Round(batches, self._round.samples + count, context)
        self._counts.clear()
        if batches >= self._every or context.last:
            self._end_round(context)
        self._progress.stepped(self.step, count, value)

    def _end_round(self, context: StepContext) -> None:
        """Push the delta of the open round, whose last batch is that of `context`, and begin from the new values."""
        assert self._replica is not None
        done, self._round = self._round, _Round()
        gradient, samples = self._replica.deltas(), done.samples
        if not self._nan_policy.admits(self.step, gradient, batches=done.batches):
            self._replica.undo()
            gradient, samples = Gradient(), 0
        self._before_push(self._replica.rates())
        context.pushed = True
        self._batch, self._position = context.batch + 1, context.position
        self._parameters.push(gradient, context, samples)
        self._replica.refresh()

    def _end_open_round(self, *, last: bool = False) -> bool:
        """End the round if it has batches, and the pass if it is the `last` one. Return True if there was one."""
        context = self._round.context
        if context is not None:
            self._end_round(replace(context, last=last))
        return context is not None

    def _finish_pass(self, flagged: bool) -> None:
        super()._finish_pass(self._end_open_round(last=True) or flagged)
        if self._replica is not None:
            self._replica.refresh()  # others may have ended rounds since our last one

    def _end_broken_round(self) -> None:
        """End the round of a loop that ended by `break`."""
        if not self._is_looping:
            self._end_open_round()
