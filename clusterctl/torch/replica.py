"""A trainer's copy of a model in the outer mode: what it has learned in a round, and the values that it starts from."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, Callable, NamedTuple

import torch

from clusterctl.runtime import from_rank0
from clusterctl.runtime.errors import UseError
from clusterctl.runtime.table.rules import Rule
from clusterctl.runtime.table.sharding import places_in_turn
from clusterctl.runtime.trainer.handles import Dense
from clusterctl.runtime.trainer.packing import Gradient
from clusterctl.torch.distribution import check_parameter
from clusterctl.torch.embeddings import Embedding
from clusterctl.torch.state import ERRORS, GROUPS, INNER, Value


class _PlacedParameter(NamedTuple):
    """A parameter, its table, whose value is the base of the round, and room for the delta."""

    parameter: Any
    table: Dense
    delta: Any


class Replica:
    """The `parameters` of a model, by name, as tables made by `dense`, which is `ps.dense`; and the inner optimizer.

    `can_undo` keeps a copy of the inner state from the beginning of a round.
    """

    def __init__(
        self,
        dense: Callable[..., Dense],
        model: Any,
        parameters: Mapping[str, Any],
        optimizer: Any,
        rule: Rule,
        *,
        can_undo: bool,
    ) -> None:
        self._model = model
        self._optimizer = optimizer
        self._can_undo = can_undo
        self._before: tuple[Any, dict[str, Any]] | None = None
        self._placed: list[_PlacedParameter] = []
        places = places_in_turn(parameter.numel() for parameter in parameters.values())
        for (name, parameter), place in zip(parameters.items(), places):
            value = parameter.detach().cpu().numpy()
            table = dense(name, value.shape, rule, from_rank0(value), place=place)
            self._placed.append(_PlacedParameter(parameter, table, torch.empty(table.shape, dtype=torch.float32)))
        self.refresh()

    def state(self) -> list[tuple[str, Value, bool]]:
        """Return what is part of a trainer's state: name, value, and if it is loaded when the loop begins.

        The groups of the inner optimizer are, as schedulers set their rates when they are made.
        """
        inner = self._optimizer

        def put_groups(groups: list[dict[str, Any]]) -> None:
            inner.load_state_dict({**inner.state_dict(), "param_groups": groups})

        def put_errors(errors: dict[str, Any]) -> None:
            for _, table, _ in self._placed:
                table.load_wire_state(errors[table.name])

        def errors() -> dict[str, Any]:
            return {table.name: table.wire_state() for _, table, _ in self._placed}

        values = [
            (INNER, Value(INNER, inner.state_dict, inner.load_state_dict), False),
            (GROUPS, Value(GROUPS, lambda: inner.state_dict()["param_groups"], put_groups), True),
        ]
        has_errors = self._placed[0].table.spec.wire is not None
        return [*values, (ERRORS, Value(ERRORS, errors, put_errors), False)] if has_errors else values

    def rates(self) -> dict[int, float]:
        """Return the learning rates of the inner optimizer by group."""
        return {number: float(group.get("lr", 0)) for number, group in enumerate(self._optimizer.param_groups)}

    def begin_round(self) -> None:
        """Keep what `undo` needs, unless this was done since the last `refresh`."""
        if self._can_undo and self._before is None:
            buffers = {name: buffer.clone() for name, buffer in self._model.named_buffers()}
            self._before = copy.deepcopy(self._optimizer.state_dict()["state"]), buffers

    def deltas(self) -> Gradient:
        """Return base minus local of every table, flattened; valid until the next call."""
        gradient = Gradient()
        for parameter, table, delta in self._placed:
            torch.sub(table.tensor(), parameter.detach().cpu(), out=delta)
            gradient.dense[table] = delta.numpy().reshape(-1)
        return gradient

    def undo(self) -> None:
        """Return the state of the inner optimizer, and the buffers, to those of the round's beginning.

        Learning rates stay: the schedulers that set them have moved on.
        """
        assert self._before is not None
        state, buffers = self._before
        self._optimizer.load_state_dict({**self._optimizer.state_dict(), "state": state})
        for name, buffer in self._model.named_buffers():
            if name in buffers:
                buffer.detach().copy_(buffers[name])

    def refresh(self) -> None:
        """Begin a round from the newest values."""
        self._before = None
        with torch.no_grad():
            for parameter, table, _ in self._placed:
                parameter.copy_(table.tensor())


def trainable(model: Any, optimizer: Any) -> dict[str, Any]:
    """Return the trainable parameters of a model by name. Raises UseError if `optimizer` has others."""
    if not isinstance(model, torch.nn.Module):
        raise UseError(f"model={type(model).__name__} is not a torch.nn.Module")
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise UseError(f"optimizer={type(optimizer).__name__} is not a torch.optim.Optimizer")
    for name, module in model.named_modules():
        if isinstance(module, Embedding):
            raise UseError(f"module {name!r} is a clusterctl.torch.Embedding", remedy="use torch.nn.Embedding")
    named = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    if not named:
        raise UseError("the model has no trainable parameters", remedy="set requires_grad before ps.outer")
    for name, parameter in named.items():
        check_parameter(name, parameter)
    ours = {id(parameter) for parameter in named.values()}
    for number, group in enumerate(optimizer.param_groups):
        for place, parameter in enumerate(group["params"]):
            if id(parameter) not in ours:
                raise UseError(
                    f"parameter {place} of optimizer group {number} is not a trainable one of model.named_parameters()",
                    remedy="give the optimizer only parameters of the model with requires_grad",
                )
    return named
