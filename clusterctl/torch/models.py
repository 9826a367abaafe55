"""Saved models for torch: `load_model`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from clusterctl.runtime.checkpoint import model as saved
from clusterctl.runtime.errors import ModelError, UseError
from clusterctl.torch.embeddings import Embedding


def load_model(directory: saved.PathLike, model: Any) -> list[str]:
    """Fill a model with the values of a saved one, and return the names of what was filled, in the model's order.

    `directory` is one with a saved model, or a file, as in `clusterctl.runtime.load_model`. `model` is a
    torch.nn.Module that is not distributed yet. Its parameters and buffers take the values of the same names in their
    own types; an embedding takes the rows that were saved. What was frozen, or is not in the saved model for another
    reason, is left as it is. Raises ModelError if the saved model is damaged, has another shape, or has nothing of
    `model`; then `model` is as before.
    """
    if not isinstance(model, torch.nn.Module):
        raise UseError(f"model={type(model).__name__} is not a torch.nn.Module")
    values = saved.load_model(directory)
    found = [(name, target, values[name]) for name, target in _targets(model) if name in values]
    if not found:
        names = ", ".join(sorted(values)[:4]) or "nothing"
        raise ModelError(f"the model in {directory} has {names}, but nothing of this model")
    for name, target, value in found:
        _check(name, target, value, directory)
    with torch.no_grad():
        for _, target, value in found:
            if isinstance(target, Embedding):
                target.load_rows(*value)
            elif isinstance(value, tuple):
                target[torch.from_numpy(value[0])] = torch.from_numpy(value[1]).to(target)
            else:
                target.copy_(torch.from_numpy(value))
    return [name for name, _, _ in found]


def _targets(model: Any) -> Iterator[tuple[str, Any]]:
    """Yield the names of parameters and buffers, all of them if a tensor has several, and of `Embedding`s."""
    for name, module in model.named_modules():
        if isinstance(module, Embedding):
            yield name or "embedding", module
    for name, value in model.state_dict(keep_vars=True).items():
        if isinstance(value, torch.Tensor):
            yield name, value


def _check(name: str, target: Any, value: Any, directory: saved.PathLike) -> None:
    shape = (None, target.dim) if isinstance(target, Embedding) else tuple(target.shape)
    if isinstance(value, tuple):
        ids, rows = value
        if len(shape) == 2 and shape[1] == rows.shape[1] and _are_within(ids, shape[0]):
            return
        most = f", ids {ids[0]} to {ids[-1]}" if len(ids) else ""
        what = f"rows of width {rows.shape[1]}{most}"
    elif value.shape == shape:
        return
    else:
        what = str(value.shape)
    raise ModelError(
        f"{name!r} is {shape} in this model, but in {directory} it is {what}",
        remedy="make the model as it was when it was saved, and load it before ps.distribute",
    )


def _are_within(ids: Any, count: int | None) -> bool:
    return count is None or not len(ids) or bool(ids[0] >= 0 and ids[-1] < count)
