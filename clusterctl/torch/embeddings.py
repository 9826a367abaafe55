"""Embeddings with rows on the servers: `nn.Embedding` and `nn.EmbeddingBag` with `sparse=True`, and `Embedding`.

A forward call pulls the rows of its distinct ids into a leaf tensor, and runs torch's own function on positions in it.
A leaf that got a gradient is a parameter of its module and of the optimizer until the next push. So `zero_grad`,
`clip_grad_norm_` and GradScaler find it.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from clusterctl.runtime import SGD, from_rank0, uniform
from clusterctl.runtime.errors import UseError
from clusterctl.runtime.table.initializers import Initial
from clusterctl.runtime.table.retention import Retention
from clusterctl.runtime.table.rules import Rule
from clusterctl.runtime.table.spec import TableSpec
from clusterctl.runtime.trainer import handles
from clusterctl.runtime.trainer.batches import whole_number
from clusterctl.torch.batch_parts import IdsInBatch

_LEAF = "pulled_"


class Embedding(nn.Module):  # type: ignore[misc]
    """Rows of width `dim` for any int64 ids, on the servers alone: `ps.distribute` makes their table.

    The table has the name of the module in the model. `rule` is a rule of `clusterctl.runtime` with its own rate; None
    stands for that of the optimizer's group of `weight`, which is empty. `init` and `retention` are those of
    `ps.embedding`.
    """

    def __init__(
        self, dim: int, rule: Rule | None = None, init: Initial | None = None, retention: Retention | None = None
    ) -> None:
        super().__init__()
        self.dim = whole_number("dim", dim, 1)
        TableSpec("embedding", "sparse", (self.dim,), rule or SGD(1.0), init or uniform(0.1), retention=retention)
        self.rule = rule
        self.init = init
        self.retention = retention
        self.weight = nn.Parameter(torch.empty(0, self.dim))
        self.loaded: tuple[Any, Any] | None = None

    def forward(self, ids: Any) -> Any:
        """Return the rows of `ids`, float32 of shape `ids.shape + (dim,)`; zeros for an id without a loaded row.

        Raises UseError before `ps.distribute` and `load_model`.
        """
        if self.loaded is None:
            raise UseError("clusterctl.torch.Embedding has no rows before ps.distribute", remedy="distribute the model")
        known, rows = self.loaded
        flat = ids.reshape(-1).cpu().numpy()
        found = np.flatnonzero(np.isin(flat, known))
        out = np.zeros((len(flat), self.dim), np.float32)
        out[found] = rows[np.searchsorted(known, flat[found])]
        return torch.from_numpy(out).to(self.weight.device).reshape(*ids.shape, self.dim)

    def load_rows(self, ids: Any, rows: Any) -> None:
        """Take the rows of a saved model, for use without servers: ids ascending, rows of shape (len(ids), dim)."""
        self.loaded = ids, rows

    def extra_repr(self) -> str:
        return str(self.dim)


class _Leaf(NamedTuple):
    tensor: Any
    ids: Any


class ModuleRows:
    """The rows of one module in its `table`, and their gradients until the next push.

    `embedding` is `ps.embedding`, and `rule` that of the optimizer's group with the list `parameters`. The list and the
    module have the leaves that got a gradient.
    """

    def __init__(
        self, name: str, module: Any, embedding: Callable[..., handles.Embedding], rule: Rule | None, parameters: Any
    ) -> None:
        if isinstance(module, Embedding):
            if module.loaded is not None:
                raise UseError(
                    f"module {name!r} has rows of ct.load_model, which ps.distribute does not send",
                    remedy="use start --load or connect(load=...) instead of ct.load_model",
                )
            self.has_rule_of_group = module.rule is None
            given = {"init": module.init, "retention": module.retention}
            self.table = embedding(name or "embedding", module.dim, module.rule or rule, **given)
        else:
            self.has_rule_of_group = True
            values = module.weight.detach().cpu().numpy()
            name = f"{name}.weight" if name else "weight"
            self.table = embedding(name, values.shape[1], rule, from_rank0(values), rows=len(values))
        self._module = module
        self._parameters = parameters
        self._leaves: list[_Leaf] = []
        self._seen: Any = None
        self.ids = IdsInBatch()
        #: `_pull`, which torch.compile leaves as it is.
        self.pull = torch.compiler.disable(self._pull)

    def __deepcopy__(self, memo: dict[int, Any]) -> ModuleRows:
        return self  # a copy of the model has the same rows

    def attach(self) -> None:
        """Replace the module's forward, and drop its weight."""
        module = self._module
        module.weight.data = module.weight.new_empty(1, self.table.dim)[:0]  # has memory, so `check` can know it
        self._seen = _mark(module.weight)
        module.weight.grad = None
        module.rows_on_servers = self
        module.forward = types.MethodType(_FORWARD[_kind(module)], module)
        module.register_state_dict_post_hook(_without_leaves)

    def _pull(self, ids: Any) -> tuple[Any, Any, int | None]:
        """Return the positions of `ids` in the pulled rows, these rows, and the position of the padding, if any."""
        groups, rows = self.table.pull_distinct(ids)
        positions = torch.from_numpy(groups.inverse).reshape(ids.shape).to(ids.device, ids.dtype)
        weight = self._module.weight
        pulled = torch.from_numpy(rows).to(weight.device)
        if weight.requires_grad and torch.is_grad_enabled():
            self.ids.see(ids)
            pulled = nn.Parameter(pulled)
            pulled.register_post_accumulate_grad_hook(lambda leaf: self._keep(leaf, groups.distinct))
        return positions, pulled, self._padding(groups.distinct)

    def _keep(self, leaf: Any, ids: Any) -> None:
        """Keep a leaf that got a gradient; those cleared by `zero_grad` are let go."""
        kept = [one for one in self._leaves if one.tensor.grad is not None and one.tensor is not leaf]
        self._set([*kept, _Leaf(leaf, ids)])

    def _set(self, leaves: list[_Leaf]) -> None:
        gone = {id(one.tensor) for one in self._leaves}
        self._parameters[:] = [one for one in self._parameters if id(one) not in gone]
        for number in range(len(self._leaves)):
            del self._module._parameters[f"{_LEAF}{number}"]
        self._leaves = leaves
        for number, leaf in enumerate(leaves):
            self._parameters.append(leaf.tensor)
            self._module._parameters[f"{_LEAF}{number}"] = leaf.tensor

    def gradient(self) -> tuple[Any, Any] | None:
        """Return the ids and the gradients since the last push, None if there are none or all are zero.

        `zero_grad(set_to_none=False)` leaves zeros.
        """
        found = [self._without_padding(leaf) for leaf in self._leaves if leaf.tensor.grad is not None]
        parts = [(ids, rows) for ids, rows in found if rows.any()]
        if len(parts) < 2:
            return parts[0] if parts else None
        return np.concatenate([ids for ids, _ in parts]), np.concatenate([rows for _, rows in parts])

    def _without_padding(self, leaf: _Leaf) -> tuple[Any, Any]:
        rows = leaf.tensor.grad.cpu().numpy()
        place = self._padding(leaf.ids)
        return (leaf.ids, rows) if place is None else (np.delete(leaf.ids, place), np.delete(rows, place, axis=0))

    def _padding(self, ids: Any) -> int | None:
        """Return the position of the module's padding_idx among distinct, ascending ids."""
        padding = getattr(self._module, "padding_idx", None)
        if padding is None:
            return None
        place = int(np.searchsorted(ids, padding))
        return place if place < len(ids) and ids[place] == padding else None

    def check(self) -> None:
        """Raise UseError if the program has changed the empty weight, which changes no row."""
        (*now, place), (*before, place_before) = _mark(self._module.weight), self._seen
        if now != before or (place != place_before and None not in (place, place_before)):
            raise UseError(
                f"the program changed the weight of the embedding of table {self.table.name!r}, whose rows are on the "
                "servers",
                remedy="leave it out, for example of load_state_dict, or use an nn.Embedding with sparse=False",
            )

    def clear(self) -> None:
        """Forget all gradients."""
        self._set([])


def _mark(weight: Any) -> tuple[int, int, int | None]:
    """Return what changes if a program writes to a weight; its place in memory, unless it was moved to a device."""
    place = weight.untyped_storage().data_ptr() if weight.device.type == "cpu" else None
    return weight.numel(), weight._version, place


def _embed(module: Any, input: Any) -> Any:
    positions, rows, padding = module.rows_on_servers.pull(input)
    if padding is None and rows.device.type == "cpu":  # the same numbers, and its gradient is four times faster
        return rows.index_select(0, positions.flatten()).reshape(*positions.shape, rows.shape[1])
    return functional.embedding(positions, rows, padding)


def _embed_bags(module: Any, input: Any, offsets: Any = None, per_sample_weights: Any = None) -> Any:
    positions, rows, padding = module.rows_on_servers.pull(input)
    return functional.embedding_bag(
        positions,
        rows,
        offsets,
        mode=module.mode,
        per_sample_weights=per_sample_weights,
        include_last_offset=module.include_last_offset,
        padding_idx=padding,
    )


def _embed_ids(module: Any, ids: Any) -> Any:
    return _embed(module, ids)


_FORWARD: dict[Any, Callable[..., Any]] = {nn.Embedding: _embed, nn.EmbeddingBag: _embed_bags, Embedding: _embed_ids}


def _kind(module: Any) -> Any:
    """Return the class that a module is of, None for one that is no embedding."""
    return next((kind for kind in _FORWARD if isinstance(module, kind)), None)


def _without_leaves(module: Any, state: dict[str, Any], prefix: str, metadata: Any) -> None:
    for name in [name for name in state if name.startswith(f"{prefix}{_LEAF}")]:
        del state[name]


def sparse_modules(model: Any, trained: set[int]) -> dict[int, tuple[str, Any]]:
    """Return the modules of a model whose rows go to the servers, with their names, by the id of their weight.

    They are `Embedding`, and torch's with `sparse=True` if their weights are `trained`. Raises UseError for what the
    servers do not have.
    """
    found: dict[int, tuple[str, Any]] = {}
    for name, module in model.named_modules():
        kind = _kind(module)
        if kind is None:
            continue
        is_trained = id(module.weight) in trained
        if kind is Embedding or (module.sparse and is_trained):
            _check(name, module, kind, is_trained)
            found.setdefault(id(module.weight), (name, module))
    for name, module in model.named_modules():
        for own, parameter in module._parameters.items():
            if id(parameter) in found and found[id(parameter)][1] is not module:
                raise UseError(
                    f"the weight of module {found[id(parameter)][0]!r}, which has sparse=True, is also "
                    f"{f'{name}.{own}'.lstrip('.')!r}",
                    remedy="use sparse=False",
                )
    return found


def _check(name: str, module: Any, kind: Any, is_trained: bool) -> None:
    what, remedy = f"{kind.__name__} module {name!r}", "or use sparse=False"
    if type(module).forward is not kind.forward:
        raise UseError(f"{what} has a forward of its own", remedy=f"use {kind.__name__} itself, {remedy}")
    for option in ("max_norm", "scale_grad_by_freq"):
        if number := getattr(module, option, None):
            raise UseError(f"{what}: the servers have no {option}={number!r}", remedy=f"leave {option} out, {remedy}")
    if kind is Embedding and module.rule is None and not is_trained:
        raise UseError(
            f"{what} has no rule, and its weight is not in the optimizer",
            remedy="pass rule=, or an optimizer of model.parameters()",
        )
