"""Server-side optimizers. A rule works on arrays only: it has no tables, no step counter, no transport.

`update(value, state, grad, out, t)` takes float32 arrays of one shape. It writes the new value to `out` (which may be
`value` itself), updates each array of `state` in place, and destroys `grad`. `t` counts global steps from 1. All
operations are elementwise, so the result does not depend on how a table is partitioned.

`lr` is a number or a schedule of `schedules`, whose rate at t is computed in float64; a `rate` given to `update`
replaces it for one step. Penalties are part of the gradient, `g += l2 * w + l1 * sign(w)`, except in Ftrl, whose
formula includes them. In the formulas w is the value, g the gradient, and all else state, which starts at `starts`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar, Union

import numpy as np

from clusterctl.runtime.arrays import Floats
from clusterctl.runtime.errors import UseError
from clusterctl.runtime.table.schedules import Schedule, schedule_from_json

Rate = Union[float, Schedule]

_LARGEST = float(np.finfo(np.float32).max)
#: For rules that divide by the rate: a lower rate, as at the end of a schedule, changes nothing.
_NO_RATE = 1e-30


class Rule:
    """Base of the rules: `lr` is the learning rate, `l1` and `l2` are the weights of the penalties.

    A rule cannot be changed. Rules of one class are equal if all their numbers are.
    """

    lr: Rate
    l1: float
    l2: float

    #: The number of arrays of state, each of the value's shape.
    states: ClassVar[int] = 0
    #: Parameters that must not be zero in float32, and those that must be below 1.
    _above_zero: ClassVar[tuple[str, ...]] = ("lr",)
    _below_one: ClassVar[tuple[str, ...]] = ()

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{type(self).__name__} cannot be changed; make a new one")

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and vars(other) == vars(self)

    def __hash__(self) -> int:
        return hash((type(self), *vars(self).values()))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in vars(self).items())})"

    def to_json(self) -> dict[str, Any]:
        lr = self.lr.to_json() if isinstance(self.lr, Schedule) else self.lr
        return {"rule": type(self).__name__, **vars(self), "lr": lr}

    @property
    def starts(self) -> tuple[float, ...]:
        """The number that each array of state is filled with at first."""
        return (0.0,) * self.states

    def update(
        self, value: Floats, state: Sequence[Floats], grad: Floats, out: Floats, t: int, rate: float | None = None
    ) -> None:
        """Apply one step, see the module; `rate` replaces `lr`. It raises nothing, and NaN stays NaN."""
        if self.l1 or self.l2:
            self._penalise(value, grad)
        lr = self.lr
        if rate is None:
            rate = lr.at(t) if isinstance(lr, Schedule) else lr
        self._move(value, state, grad, out, t, rate)

    def _move(self, value: Floats, state: Sequence[Floats], grad: Floats, out: Floats, t: int, rate: float) -> None:
        raise NotImplementedError

    def _penalise(self, value: Floats, grad: Floats) -> None:
        if self.l2:
            grad += value * np.float32(self.l2)
        if self.l1:
            signs = np.sign(value)
            signs *= np.float32(self.l1)
            grad += signs

    def _set(self, lr: Rate, **numbers: float) -> None:
        object.__setattr__(self, "lr", lr if isinstance(lr, Schedule) else self._checked("lr", lr))
        for name, number in numbers.items():
            object.__setattr__(self, name, self._checked(name, number))

    def _checked(self, name: str, number: float) -> float:
        given = f"{type(self).__name__}({name}={number!r})"
        if isinstance(number, bool) or not isinstance(number, (int, float)) or not abs(number) <= _LARGEST:
            raise UseError(f"{given} is not a finite number")
        if number < 0 or (np.float32(number) == 0 and name in self._above_zero):
            raise UseError(f"{given} must be positive")
        if number >= 1 and name in self._below_one:
            raise UseError(f"{given} must be below 1")
        return float(number)


class SGD(Rule):
    """`w -= lr * g` (Robbins and Monro 1951)."""

    def __init__(self, lr: Rate, *, l1: float = 0.0, l2: float = 0.0) -> None:
        self._set(lr, l1=l1, l2=l2)

    def _move(self, value: Floats, state: Sequence[Floats], grad: Floats, out: Floats, t: int, rate: float) -> None:
        grad *= np.float32(rate)
        np.subtract(value, grad, out=out)


class Momentum(Rule):
    """`v = momentum * v + g; w -= lr * v` (Polyak 1964, in the form of torch.optim.SGD).

    With `nesterov`, `w -= lr * (g + momentum * v)` with the new v (Nesterov 1983; Sutskever et al. 2013; as in torch).
    """

    momentum: float
    nesterov: bool
    states: ClassVar[int] = 1

    def __init__(
        self, lr: Rate, momentum: float = 0.9, *, nesterov: bool = False, l1: float = 0.0, l2: float = 0.0
    ) -> None:
        if not isinstance(nesterov, bool):
            raise UseError(f"Momentum(nesterov={nesterov!r}) is neither True nor False")
        self._set(lr, momentum=momentum, l1=l1, l2=l2)
        object.__setattr__(self, "nesterov", nesterov)

    def _move(self, value: Floats, state: Sequence[Floats], grad: Floats, out: Floats, t: int, rate: float) -> None:
        velocity = state[0]
        velocity *= np.float32(self.momentum)
        velocity += grad
        if self.nesterov:
            grad += velocity * np.float32(self.momentum)
            grad *= np.float32(rate)
        else:
            np.multiply(velocity, np.float32(rate), out=grad)
        np.subtract(value, grad, out=out)


class Adagrad(Rule):
    """`h += g * g; w -= lr * g / (sqrt(h) + eps)` (Duchi, Hazan, Singer 2011, in the form of torch.optim.Adagrad).

    h starts at `start`, which is the initial_accumulator_value of torch.
    """

    eps: float
    start: float
    states: ClassVar[int] = 1
    _above_zero: ClassVar[tuple[str, ...]] = ("lr", "eps")

    def __init__(self, lr: Rate, *, eps: float = 1e-10, start: float = 0.0, l1: float = 0.0, l2: float = 0.0) -> None:
        self._set(lr, eps=eps, start=start, l1=l1, l2=l2)

    @property
    def starts(self) -> tuple[float, ...]:
        return (self.start,)

    def to_json(self) -> dict[str, Any]:
        """Return the JSON, without `start` if it is 0."""
        return {name: value for name, value in super().to_json().items() if name != "start" or value}

    def _move(self, value: Floats, state: Sequence[Floats], grad: Floats, out: Floats, t: int, rate: float) -> None:
        history = state[0]
        scratch = grad * grad
        history += scratch
        _divide_by_root(value, history, grad, scratch, out, rate, self.eps)


class RMSProp(Rule):
    """`h = decay * h + (1 - decay) * g * g; w -= lr * g / (sqrt(h) + eps)`.

    Tieleman and Hinton 2012 (lecture 6.5 of Neural Networks for Machine Learning), in the form of torch.optim.RMSprop.
    """

    decay: float
    eps: float
    states: ClassVar[int] = 1
    _above_zero: ClassVar[tuple[str, ...]] = ("lr", "eps")
    _below_one: ClassVar[tuple[str, ...]] = ("decay",)

    def __init__(self, lr: Rate, decay: float = 0.99, *, eps: float = 1e-8, l1: float = 0.0, l2: float = 0.0) -> None:
        self._set(lr, decay=decay, eps=eps, l1=l1, l2=l2)

    def _move(self, value: Floats, state: Sequence[Floats], grad: Floats, out: Floats, t: int, rate: float) -> None:
        history = state[0]
        history *= np.float32(self.decay)
        scratch = grad * grad
        scratch *= np.float32(1 - self.decay)
        history += scratch
        _divide_by_root(value, history, grad, scratch, out, rate, self.eps)


class Adam(Rule):
    """Algorithm 1 of Kingma and Ba 2015, with `t` the job's global step, even for rows first seen late.

    `m = b1*m + (1-b1)*g; v = b2*v + (1-b2)*g*g; w -= lr/(1-b1^t) * m / (sqrt(v)/sqrt(1-b2^t) + eps)`
    """

    beta1: float
    beta2: float
    eps: float
    states: ClassVar[int] = 2
    _above_zero: ClassVar[tuple[str, ...]] = ("lr", "eps")
    _below_one: ClassVar[tuple[str, ...]] = ("beta1", "beta2")

    def __init__(
        self,
        lr: Rate = 1e-3,
        beta1: float = 0.9,
        beta2: float = 0.999,
        *,
        eps: float = 1e-8,
        l1: float = 0.0,
        l2: float = 0.0,
    ) -> None:
        self._set(lr, beta1=beta1, beta2=beta2, eps=eps, l1=l1, l2=l2)

    def _move(self, value: Floats, state: Sequence[Floats], grad: Floats, out: Floats, t: int, rate: float) -> None:
        self._turn_into_step(state, grad, t, rate)
        np.subtract(value, grad, out=out)

    def _turn_into_step(self, state: Sequence[Floats], grad: Floats, t: int, rate: float) -> None:
        """Replace the gradient by what the step subtracts from the value."""
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
        grad *= np.float32(rate / (1 - self.beta1**t))


class AdamW(Adam):
    """Adam after `w *= 1 - lr * weight_decay` (Loshchilov and Hutter 2019, in the form of torch.optim.AdamW).

    Without l1 and l2. Like all else, the decay leaves rows and tables alone that no trainer pushes in a step.
    """

    weight_decay: float

    def __init__(
        self,
        lr: Rate = 1e-3,
        beta1: float = 0.9,
        beta2: float = 0.999,
        *,
        eps: float = 1e-8,
        weight_decay: float = 0.01,
    ) -> None:
        self._set(lr, beta1=beta1, beta2=beta2, eps=eps, l1=0.0, l2=0.0, weight_decay=weight_decay)

    def to_json(self) -> dict[str, Any]:
        return {name: value for name, value in super().to_json().items() if name not in ("l1", "l2")}

    def _move(self, value: Floats, state: Sequence[Floats], grad: Floats, out: Floats, t: int, rate: float) -> None:
        """The decay is added to the step, so that each step rounds the value once."""
        self._turn_into_step(state, grad, t, rate)
        grad += value * np.float32(rate * self.weight_decay)
        np.subtract(value, grad, out=out)


class Ftrl(Rule):
    """FTRL-proximal, algorithm 1 of McMahan et al. 2013 (Ad Click Prediction), with alpha named `lr`.

    `n += g*g; d = (beta + sqrt(n)) / lr + l2; u = c + g - w*d; c = clip(u, -l1, l1); w = (c - u) / d`

    The paper keeps `z = c - w*d` instead of c, and computes w from z and n alone. The values are the same if they start
    at zero; this form also continues from a value that was initialized, loaded or changed elsewhere: w minimizes the
    sum of `g_i*w + s_i*(w - w_i)^2 / 2` over all steps, `(beta/lr + l2) * (w - w_0)^2 / 2` and `l1*|w|`, where s_i is
    the amount that step i added to d.
    """

    beta: float
    states: ClassVar[int] = 2
    _above_zero: ClassVar[tuple[str, ...]] = ("lr", "beta")

    def __init__(self, lr: Rate, *, beta: float = 1.0, l1: float = 0.0, l2: float = 0.0) -> None:
        self._set(lr, beta=beta, l1=l1, l2=l2)

    def _penalise(self, value: Floats, grad: Floats) -> None:
        """Do nothing: the formula includes the penalties."""

    def _move(self, value: Floats, state: Sequence[Floats], grad: Floats, out: Floats, t: int, rate: float) -> None:
        if rate < _NO_RATE:
            np.copyto(out, value)
            return
        kept, squares = state
        divisor = grad * grad
        squares += divisor
        np.sqrt(squares, out=divisor)
        divisor *= np.float32(1 / rate)
        divisor += np.float32(self.beta / rate + self.l2)
        if self.l1:
            grad += kept
            grad -= value * divisor
            np.clip(grad, np.float32(-self.l1), np.float32(self.l1), out=kept)
            np.subtract(kept, grad, out=grad)
            np.divide(grad, divisor, out=out)
        else:  # the same with c = 0
            grad /= divisor
            np.subtract(value, grad, out=out)


class Delta(Rule):
    """The rule of lanes in geo mode: trainers send their changes, and the lane adds them."""

    def __init__(self) -> None:
        self._set(1.0, l1=0.0, l2=0.0)

    def update(
        self, value: Floats, state: Sequence[Floats], grad: Floats, out: Floats, t: int, rate: float | None = None
    ) -> None:
        np.add(value, grad, out=out)


RULES: dict[str, type[Rule]] = {cls.__name__: cls for cls in (SGD, Momentum, Adagrad, RMSProp, Adam, AdamW, Ftrl)}


def is_rate(number: Any) -> bool:
    """Return True if `number` can replace the rate of a rule for a step: zero or more, and finite in float32."""
    is_number = isinstance(number, (int, float)) and not isinstance(number, bool)
    return is_number and 0 <= number <= _LARGEST


def _divide_by_root(
    value: Floats, squares: Floats, grad: Floats, scratch: Floats, out: Floats, rate: float, eps: float
) -> None:
    """Compute `out = value - rate * grad / (sqrt(squares) + eps)`; destroys `grad` and `scratch`."""
    np.sqrt(squares, out=scratch)
    scratch += np.float32(eps)
    grad *= np.float32(rate)
    grad /= scratch
    np.subtract(value, grad, out=out)


def rule_from_json(data: dict[str, Any]) -> Rule:
    """Return the rule in JSON of `Rule.to_json`. Raises UseError for anything else."""
    try:
        numbers = {str(name): _number_from_json(value) for name, value in data.items() if name != "rule"}
        return RULES[str(data["rule"])](**numbers)
    except (AttributeError, KeyError, TypeError, ValueError) as exc:
        raise UseError(f"rule {data!r} is malformed", remedy=f"known rules: {', '.join(RULES)}") from exc


def _number_from_json(value: Any) -> Rate:
    if isinstance(value, dict):
        return schedule_from_json(value)
    return value if isinstance(value, bool) else float(value)
