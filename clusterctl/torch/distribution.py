"""`ps.distribute`: a model's parameters as tables, and an optimizer whose `step` pushes their gradients."""

from __future__ import annotations

import types
from collections.abc import Mapping
from typing import Any, Callable, Optional

import torch

from clusterctl.runtime import from_rank0
from clusterctl.runtime.errors import UseError
from clusterctl.runtime.table.sharding import places_in_turn
from clusterctl.runtime.trainer.handles import Dense, Embedding
from clusterctl.runtime.trainer.packing import Handle
from clusterctl.torch.embeddings import ModuleRows, sparse_modules
from clusterctl.torch.rules import check_optimizer, check_unchanged, fixed_numbers, rule_of

#: (gradients, samples, loss, rates): the push of a step.
Push = Callable[[Mapping[Handle, Any], Optional[int], Any, Mapping[Handle, float]], None]


class Distribution:
    """Makes tables by `dense` and `embedding`, which are those of `ps`, and replaces `optimizer.step`.

    All else of the optimizer stays.
    """

    def __init__(
        self,
        dense: Callable[..., Dense],
        embedding: Callable[..., Embedding],
        push: Push,
        model: Any,
        optimizer: Any,
        *,
        is_sync: bool,
    ) -> None:
        check_optimizer(optimizer)
        named = _named(model, optimizer)
        groups = optimizer.param_groups
        sparse = sparse_modules(model, {id(one) for group in groups for one in group["params"]})
        self._send = push
        self._optimizer = optimizer
        self._fixed = [fixed_numbers(optimizer, group) for group in groups]
        self._dense: list[tuple[Any, Dense]] = []
        self.rows: list[ModuleRows] = []
        dense_ones = [one for group in groups for one in group["params"] if id(one) not in sparse]
        place_of = dict(zip(map(id, dense_ones), places_in_turn(one.numel() for one in dense_ones)))
        #: The number of the group whose rate a table has; those with a rule of their own are not here.
        self._group_of: dict[Handle, int] = {}
        rules = [rule_of(optimizer, group) for group in groups]
        for number, (group, rule) in enumerate(zip(groups, rules)):
            for parameter in group["params"]:
                if id(parameter) in sparse:
                    rows = ModuleRows(*sparse.pop(id(parameter)), embedding, rule, group["params"])
                    self.rows.append(rows)
                    if rows.has_rule_of_group:
                        self._group_of[rows.table] = number
                else:
                    value = parameter.detach().cpu().numpy()
                    place = place_of[id(parameter)]
                    table = dense(named[id(parameter)], value.shape, rule, from_rank0(value), place=place)
                    self._dense.append((parameter, table))
                    self._group_of[table] = number
        self.rows += [ModuleRows(*module, embedding, None, groups[0]["params"]) for module in sparse.values()]
        #: Outside sync, tables change while a batch is computed; these are the values that `refresh` copied.
        self._copies = None if is_sync else [table.tensor().clone() for _, table in self._dense]
        self.refresh()  # makes the tables, which may fail: the model changes afterwards
        for rows in self.rows:
            rows.attach()
        self._replace_methods()

    def _replace_methods(self) -> None:
        """Give the optimizer its methods, as a subclass would: a scheduler that is older than this calls them too."""

        def step(optimizer: Any, closure: Any = None, *, samples: int | None = None, loss: Any = None) -> None:
            optimizer._opt_called = True  # schedulers look for it
            if closure is not None:
                raise UseError("optimizer.step(closure)", remedy="compute the gradients before optimizer.step()")
            self._push(samples, loss)

        def add_param_group(optimizer: Any, group: Any) -> None:
            raise UseError("a parameter group was added after ps.distribute", remedy="add it before")

        optimizer, hooked = self._optimizer, torch.optim.Optimizer.profile_hook_step(step)
        hooked._wrapped_by_lr_sched = True  # or a scheduler would wrap it to set `_opt_called`, or warn
        optimizer.step = types.MethodType(hooked, optimizer)
        optimizer.add_param_group = types.MethodType(add_param_group, optimizer)
        optimizer._step_supports_amp_scaling = False  # that of `fused`: GradScaler is to unscale as for any other
        optimizer.state.clear()

    def _push(self, samples: int | None, loss: Any) -> None:
        self.check()
        for number, (group, fixed) in enumerate(zip(self._optimizer.param_groups, self._fixed)):
            check_unchanged(number, group, fixed)
        if self._optimizer.state:
            raise UseError(
                "the state of an optimizer was loaded after ps.distribute",
                remedy="resume the run: the servers keep the optimizer's state",
            )
        gradients: dict[Handle, Any] = {
            table: _gradient(one, table) for one, table in self._dense if one.grad is not None
        }
        gradients.update((rows.table, pair) for rows in self.rows if (pair := rows.gradient()) is not None)
        lr = [float(group["lr"]) for group in self._optimizer.param_groups]
        rates = {table: lr[group] for table, group in self._group_of.items()}
        self._send(gradients, samples, loss.detach() if isinstance(loss, torch.Tensor) else loss, rates)
        for rows in self.rows:
            rows.clear()
        self.refresh()

    def refresh(self) -> None:
        """Copy the newest values into the parameters."""
        with torch.no_grad():
            for number, (parameter, table) in enumerate(self._dense):
                parameter.copy_(table.tensor())
                if self._copies is not None:
                    self._copies[number].copy_(table.tensor())

    def check(self) -> None:
        """Raise UseError for a parameter that the program changed since `refresh`, bit for bit."""
        for number, (parameter, table) in enumerate(self._dense):
            copied = table.tensor() if self._copies is None else self._copies[number]
            if not _are_same(parameter.detach(), copied):
                raise UseError(
                    f"the program changed parameter {table.name!r}, and the servers have its values",
                    remedy="in sync mode call ps.assign(parameter, value) on every trainer instead",
                )
        for rows in self.rows:
            rows.check()

    def assign(self, parameter: Any, value: Any, assign: Callable[[Dense, Any], None]) -> bool:
        """Assign a value to a parameter by `assign`, which takes its table. Return False for any other parameter."""
        for one, table in self._dense:
            if one is parameter:
                assign(table, value)
                with torch.no_grad():
                    parameter.copy_(table.tensor())
                return True
        return False


def _are_same(value: Any, copied: Any) -> bool:
    """Return True for equal bits. A NaN equals itself."""
    if value.dtype != copied.dtype or value.shape != copied.shape:
        return False
    value, copied = value.cpu().contiguous().reshape(-1), copied.reshape(-1)
    in_pairs = value.numel() % 2 == 0 and value.storage_offset() % 2 == 0  # twice as fast
    bits = torch.int64 if in_pairs else torch.int32
    return bool(torch.equal(value.view(bits), copied.view(bits)))


def _gradient(parameter: Any, table: Dense) -> Any:
    if parameter.grad.layout != torch.strided:
        raise UseError(f"the gradient of {table.name!r} is sparse", remedy="use sparse=False")
    return parameter.grad


def _named(model: Any, optimizer: Any) -> dict[int, str]:
    """Return the name of each parameter of the model by its id. Raises UseError for one that cannot be a table."""
    if not isinstance(model, torch.nn.Module):
        raise UseError(f"model={type(model).__name__} is not a torch.nn.Module")
    named = {id(parameter): name for name, parameter in model.named_parameters()}
    for number, group in enumerate(optimizer.param_groups):
        for place, parameter in enumerate(group["params"]):
            name = named.get(id(parameter))
            if name is None:
                raise UseError(
                    f"parameter {place} of optimizer group {number} is not one of model.named_parameters()",
                    remedy="register it in the model, or use an optimizer of its own without ps.distribute",
                )
            check_parameter(name, parameter)
    return named


def check_parameter(name: str, parameter: Any) -> None:
    """Raise UseError for a parameter that cannot be a table."""
    if parameter.is_meta or parameter.layout != torch.strided:
        raise UseError(
            f"parameter {name!r} is a {parameter.device.type} tensor of layout {parameter.layout}",
            remedy="make it a dense tensor with values",
        )
    if parameter.dtype != torch.float32:
        raise UseError(
            f"parameter {name!r} is {parameter.dtype}, not float32", remedy="use model.float(), and autocast"
        )
