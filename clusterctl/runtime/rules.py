"""Server-side optimizers. A rule knows numbers only: no tables, no steps of its own, no transport.

`update(value, state, grad, out, t)` takes float32 arrays of one shape. It writes the new value to `out` (which may be
`value` itself), updates each array of `state` in place, and uses `grad` up. `t` counts global steps from 1. All
operations are elementwise, so the result does not depend on how a table is cut. L2 adds `l2 * value` to the gradient.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from clusterctl.runtime.errors import UseError

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Rule:
    """Base of the rules: `lr` is the learning rate, `l2` the weight of the L2 penalty."""

    lr: float
    l2: float = 0.0

    #: Arrays of the value's shape that a rule keeps beside it, from zero.
    states: ClassVar[int] = 0

    def __post_init__(self) -> None:
        for name, number in asdict(self).items():
            if isinstance(number, bool) or not isinstance(number, (int, float)) or not math.isfinite(number):
                raise UseError(f"{type(self).__name__}({name}={number!r}) is not a finite number")
            if number < 0 or (name == "lr" and number == 0):
                raise UseError(f"{type(self).__name__}({name}={number!r}) must be positive")

    def to_json(self) -> dict[str, Any]:
        numbers = {name: float(number) for name, number in asdict(self).items()}
        return {"rule": type(self).__name__, **numbers}

    def update(self, value: Floats, state: Sequence[Floats], grad: Floats, out: Floats, t: int) -> None:
        raise NotImplementedError

    def _add_l2(self, value: Floats, grad: Floats) -> None:
        if self.l2:
            grad += value * np.float32(self.l2)


@dataclass(frozen=True)
class SGD(Rule):
    """`w -= lr * g` (Robbins and Monro 1951)."""

    def update(self, value: Floats, state: Sequence[Floats], grad: Floats, out: Floats, t: int) -> None:
        self._add_l2(value, grad)
        grad *= np.float32(self.lr)
        np.subtract(value, grad, out=out)


@dataclass(frozen=True)
class Momentum(Rule):
    """`v = momentum * v + g; w -= lr * v` (Polyak 1964, in the form of torch.optim.SGD)."""

    momentum: float = 0.9
    states: ClassVar[int] = 1

    def __init__(self, lr: float, momentum: float = 0.9, l2: float = 0.0) -> None:
        _set(self, lr=lr, momentum=momentum, l2=l2)

    def update(self, value: Floats, state: Sequence[Floats], grad: Floats, out: Floats, t: int) -> None:
        self._add_l2(value, grad)
        velocity = state[0]
        velocity *= np.float32(self.momentum)
        velocity += grad
        np.multiply(velocity, np.float32(self.lr), out=grad)
        np.subtract(value, grad, out=out)


@dataclass(frozen=True)
class Adagrad(Rule):
    """`h += g * g; w -= lr * g / (sqrt(h) + eps)` (Duchi, Hazan, Singer 2011, in the form of torch.optim.Adagrad)."""

    eps: float = 1e-10
    states: ClassVar[int] = 1

    def update(self, value: Floats, state: Sequence[Floats], grad: Floats, out: Floats, t: int) -> None:
        self._add_l2(value, grad)
        history = state[0]
        scratch = grad * grad
        history += scratch
        np.sqrt(history, out=scratch)
        scratch += np.float32(self.eps)
        grad *= np.float32(self.lr)
        grad /= scratch
        np.subtract(value, grad, out=out)


@dataclass(frozen=True)
class Adam(Rule):
    """Algorithm 1 of Kingma and Ba 2015, with `t` the job's global step, also for rows first seen late.

    `m = b1*m + (1-b1)*g; v = b2*v + (1-b2)*g*g; w -= lr/(1-b1^t) * m / (sqrt(v)/sqrt(1-b2^t) + eps)`
    """

    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    states: ClassVar[int] = 2

    def __init__(
        self, lr: float = 1e-3, beta1: float = 0.9, beta2: float = 0.999, eps: float = 1e-8, l2: float = 0.0
    ) -> None:
        _set(self, lr=lr, beta1=beta1, beta2=beta2, eps=eps, l2=l2)
        if self.beta1 >= 1 or self.beta2 >= 1:
            raise UseError(f"Adam(beta1={beta1}, beta2={beta2}): both must be below 1")

    def update(self, value: Floats, state: Sequence[Floats], grad: Floats, out: Floats, t: int) -> None:
        self._add_l2(value, grad)
        mean, square = state
        mean *= np.float32(self.beta1)
        mean += grad * np.float32(1 - self.beta1)
        square *= np.float32(self.beta2)
        np.multiply(grad, grad, out=grad)
        grad *= np.float32(1 - self.beta2)
        square += grad
        np.sqrt(square, out=grad)
        grad *= np.float32(1 / math.sqrt(1 - self.beta2**t))
        grad += np.float32(self.eps)
        np.divide(mean, grad, out=grad)
        grad *= np.float32(self.lr / (1 - self.beta1**t))
        np.subtract(value, grad, out=out)


def _set(rule: Rule, **numbers: float) -> None:
    for name, number in numbers.items():
        object.__setattr__(rule, name, number)
    rule.__post_init__()


RULES: dict[str, type[Rule]] = {cls.__name__: cls for cls in (SGD, Momentum, Adagrad, Adam)}


def rule_from_json(data: dict[str, Any]) -> Rule:
    """The inverse of `Rule.to_json`; raises UseError on anything else."""
    try:
        numbers = {str(name): float(number) for name, number in data.items() if name != "rule"}
        return RULES[str(data["rule"])](**numbers)
    except (AttributeError, KeyError, TypeError, ValueError) as exc:
        raise UseError(f"rule {data!r} is not understood", remedy=f"known are {', '.join(RULES)}") from exc
