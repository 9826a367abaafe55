"""A trainer's own state: what `ps.keep` was given, the model's buffers, and the optimizer's numbers."""

from __future__ import annotations

import gc
from collections.abc import Iterable
from typing import Any, Callable

import torch
from torch.optim.lr_scheduler import LRScheduler

from clusterctl.runtime.checkpoint.safetensors import TensorEntry
from clusterctl.runtime.errors import UseError
from clusterctl.runtime.state.files import Loadable, StateContent, entry_of
from clusterctl.torch.packing import ValuePacker, array_of, is_plain, unpack

#: Names of things that are kept without a call; `ps.keep` accepts none that begins with `_`.
BUFFERS, RATES, GRADIENTS = "_buffers", "_rates", "_gradients"
#: In the outer mode: the inner optimizer, the numbers of its groups, and what rounding has left for the next push.
INNER, GROUPS, ERRORS = "_inner", "_groups", "_errors"


class Value:
    """State as `get()` returns it, None if there is none at present, and `put(value)` takes it."""

    remedy = "start the run anew: its model or optimizer has changed"

    def __init__(self, name: str, get: Callable[[], Any], put: Callable[[Any], Any]) -> None:
        self._name = name
        self._get = get
        self._put = put

    def take(self) -> StateContent | None:
        value = self._get()
        if value is None:
            return None
        packer = ValuePacker(self._name)
        return StateContent({self._name: packer.pack(value)}, packer.entries)

    def load(self, saved: Loadable) -> None:
        try:
            self._put(unpack(saved.tree[self._name], saved))
        except (AttributeError, KeyError, IndexError, RuntimeError, TypeError, ValueError) as exc:
            what = f"the state of {self._name.lstrip('_')!r} that was saved does not fit: {exc}"
            raise UseError(what, remedy=self.remedy) from exc


class Thing(Value):
    """What `ps.keep` was given: anything with `state_dict` and `load_state_dict`, or a torch.Generator."""

    remedy = "keep the same thing under this name"

    def __init__(self, name: str, thing: Any) -> None:
        if not isinstance(name, str) or not name or name.startswith("_") or "/" in name:
            raise UseError(f"ps.keep({name!r}, ...)", remedy="use a name without / that does not begin with _")
        if isinstance(thing, torch.Generator):
            get, put = thing.get_state, thing.set_state
        elif all(callable(getattr(thing, method, None)) for method in ("state_dict", "load_state_dict")):
            get, put = thing.state_dict, thing.load_state_dict
        else:
            raise UseError(
                f"ps.keep({name!r}, ...): {type(thing).__name__} has no state_dict and load_state_dict",
                remedy="give it both, or keep a torch.Generator",
            )
        super().__init__(name, get, put)
        self.thing = thing


def saved_buffers(model: Any) -> dict[str, Any]:
    """Return the model's buffers that are in its `state_dict`, by name."""
    saved = model.state_dict(keep_vars=True)
    return {name: buffer for name, buffer in model.named_buffers() if name in saved}


def entries_of(model: Any) -> list[TensorEntry]:
    """Return the same for a saved model. Raises UseError for one that cannot be saved."""
    named = saved_buffers(model)
    for name, buffer in named.items():
        if not is_plain(buffer):
            what = f"buffer {name!r} is a {buffer.layout} tensor of {buffer.dtype} on {buffer.device}"
            raise UseError(f"{what}, which is not saved", remedy="register it with persistent=False")
    return [entry_of(name, *array_of(buffer)) for name, buffer in named.items()]


def buffers_of(model: Any) -> Value | None:
    """Return the model's buffers as state: those in its `state_dict`. None if it has none."""

    def find() -> dict[str, Any]:
        return saved_buffers(model)

    def put(values: dict[str, Any]) -> None:
        own = find()
        if {name: value.shape for name, value in values.items()} != {name: one.shape for name, one in own.items()}:
            raise UseError("the buffers that were saved are not those of the model", remedy="start the run anew")
        with torch.no_grad():
            for name, value in values.items():
                own[name].copy_(value)

    return Value(BUFFERS, find, put) if find() else None


def rates_of(optimizer: Any) -> Value:
    """Return the learning rates of an optimizer's groups as state; schedulers compute the next one from them."""

    def get() -> list[dict[str, float]]:
        groups = optimizer.param_groups
        return [{key: float(group[key]) for key in ("lr", "initial_lr") if key in group} for group in groups]

    def put(rates: list[dict[str, float]]) -> None:
        for group, numbers in zip(optimizer.param_groups, rates):
            for key, number in numbers.items():
                if isinstance(group.get(key), torch.Tensor):
                    group[key].fill_(number)
                else:
                    group[key] = number

    return Value(RATES, get, put)


def gradients_of(optimizer: Any, counts: list[int | None]) -> Value:
    """Return as state the gradients of batches at the end of a pass that the next push will include.

    `counts` are the samples of the batches since the last push. Rows that embeddings have pulled are left out.
    """
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]

    def get() -> dict[str, Any] | None:
        return {"counts": list(counts), "gradients": [_parts(one.grad) for one in parameters]} if counts else None

    def put(value: dict[str, Any]) -> None:
        counts[:] = value["counts"]
        for parameter, gradient in zip(parameters, value["gradients"]):
            parameter.grad = None if gradient is None else _whole(gradient).to(parameter.device)

    return Value(GRADIENTS, get, put)


def _parts(gradient: Any) -> Any:
    """Return a gradient as plain tensors: of a sparse one its indices and values."""
    if gradient is None or gradient.layout != torch.sparse_coo:
        return gradient
    return gradient._indices(), gradient._values(), list(gradient.shape), gradient.is_coalesced()


def _whole(saved: Any) -> Any:
    """Return the gradient of which `_parts` returned the parts."""
    if not isinstance(saved, tuple):
        return saved
    indices, values, shape, is_coalesced = saved
    return torch.sparse_coo_tensor(indices, values, shape, check_invariants=True, is_coalesced=is_coalesced)


def unsaved_scheduler(optimizer: Any, kept: Iterable[Any]) -> str | None:
    """Return the name of the class of a scheduler of the optimizer that is not kept, None if there is none."""
    known = [thing for thing in kept if isinstance(thing, LRScheduler)]
    for scheduler in known:
        known += [inner for inner in getattr(scheduler, "_schedulers", ()) if inner not in known]
    for one in gc.get_objects():
        if issubclass(type(one), LRScheduler) and getattr(one, "optimizer", None) is optimizer and one not in known:
            return type(one).__name__
    return None
