"""An independent implementation of sync training: plain float64 numpy and dictionaries, no code of the runtime.

It follows the papers of the rules step by step over whole tables, with lazy rows: rows that are not pushed do not
move.
"""

from __future__ import annotations

from typing import Any

import numpy as np

Array = Any


class Lazy:
    """A value and its state under one rule; `kind` is (name, numbers), where lr may be a function of t."""

    def __init__(self, value: Array, kind: tuple[str, dict[str, Any]]) -> None:
        self.value = np.array(value, np.float64)
        self.name, self.numbers = kind
        self.first = np.full_like(self.value, self.numbers.get("start", 0.0))
        self.second = np.zeros_like(self.value)

    def apply(self, grad: Array, t: int) -> None:
        p = self.numbers
        lr = p["lr"](t) if callable(p["lr"]) else p["lr"]
        if self.name == "Ftrl":
            self._ftrl(np.asarray(grad, np.float64), lr)
            return
        grad = grad + p.get("l2", 0.0) * self.value + p.get("l1", 0.0) * np.sign(self.value)
        if self.name == "SGD":
            self.value = self.value - lr * grad
        elif self.name == "Momentum":
            self.first = p["momentum"] * self.first + grad
            ahead = grad + p["momentum"] * self.first
            self.value = self.value - lr * (ahead if p.get("nesterov") else self.first)
        elif self.name == "Adagrad":
            self.first = self.first + grad**2
            self.value = self.value - lr * grad / (np.sqrt(self.first) + 1e-10)
        elif self.name == "RMSProp":
            self.first = p["decay"] * self.first + (1 - p["decay"]) * grad**2
            self.value = self.value - lr * grad / (np.sqrt(self.first) + 1e-8)
        elif self.name in ("Adam", "AdamW"):
            self.value = self.value - lr * p.get("weight_decay", 0.0) * self.value
            b1, b2 = 0.9, 0.999
            self.first = b1 * self.first + (1 - b1) * grad
            self.second = b2 * self.second + (1 - b2) * grad**2
            mean, square = self.first / (1 - b1**t), self.second / (1 - b2**t)
            self.value = self.value - lr * mean / (np.sqrt(square) + 1e-8)
        else:
            raise AssertionError(self.name)

    def _ftrl(self, grad: Array, alpha: float) -> None:
        """Algorithm 1 of McMahan et al. 2013, line by line: `first` is z, `second` is n; the value begins at zero."""
        beta, l1, l2 = (self.numbers[name] for name in ("beta", "l1", "l2"))
        sigma = (np.sqrt(self.second + grad**2) - np.sqrt(self.second)) / alpha
        self.first = self.first + grad - sigma * self.value
        self.second = self.second + grad**2
        slope = -1 / ((beta + np.sqrt(self.second)) / alpha + l2)
        self.value = np.where(abs(self.first) <= l1, 0.0, slope * (self.first - np.sign(self.first) * l1))


class Oracle:
    """Sync training of one dense and one sparse table. `rows` gives the initial row of an id."""

    def __init__(self, dense: Array, rows: Any, kind: tuple[str, dict[str, Any]]) -> None:
        self.kind = kind
        self.dense = Lazy(dense, kind)
        self.sparse: dict[int, Lazy] = {}
        self._rows = rows
        self.t = 0

    def step(self, pushes: list[dict[str, Any]]) -> None:
        """Apply `pushes` by rank: samples, and optionally dense, ids and rows."""
        self.t += 1
        total = sum(push["samples"] for push in pushes)
        if total == 0:
            return
        dense = [p["samples"] / total * p["dense"] for p in pushes if p["samples"] and p.get("dense") is not None]
        if dense:
            self.dense.apply(np.sum(dense, axis=0), self.t)
        sums: dict[int, Array] = {}
        for push in pushes:
            if push["samples"] and push.get("ids") is not None:
                for key, row in zip(push["ids"].tolist(), push["rows"], strict=True):
                    sums[key] = sums.get(key, 0) + push["samples"] / total * row.astype(np.float64)
        for key, row in sums.items():
            if key not in self.sparse:
                self.sparse[key] = Lazy(self._rows(key), self.kind)
            self.sparse[key].apply(row, self.t)

    def row(self, key: int) -> Array:
        return self.sparse[key].value if key in self.sparse else np.array(self._rows(key), np.float64)
