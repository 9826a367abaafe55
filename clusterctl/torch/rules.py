"""The servers' rule for a group of a torch optimizer. Whatever would change the numbers otherwise is an error."""

from __future__ import annotations

from typing import Any

from torch import optim

from clusterctl.runtime import SGD, Adagrad, Adam, AdamW, Momentum
from clusterctl.runtime.errors import UseError
from clusterctl.runtime.table.rules import Rule

#: Each push brings the groups' rates, so a program may continue with another rate than it began with.
_LR = 1.0
#: Numbers of a group, by optimizer, that its rule has.
_KEPT = {
    optim.SGD: ("momentum", "nesterov", "weight_decay"),
    optim.Adagrad: ("eps", "initial_accumulator_value", "weight_decay"),
    optim.Adam: ("betas", "eps", "weight_decay", "decoupled_weight_decay"),
    optim.AdamW: ("betas", "eps", "weight_decay", "decoupled_weight_decay"),
}
#: Options that no rule has, and that must be off.
_OFF = ("dampening", "maximize", "amsgrad", "lr_decay")
_WITHOUT_EFFECT = ("lr", "foreach", "fused", "capturable", "differentiable")


def check_optimizer(optimizer: Any) -> None:
    """Raise UseError unless this is a new optimizer that the servers' rules can replace."""
    if type(optimizer) not in _KEPT:
        raise UseError(
            f"the optimizer is {type(optimizer).__name__}", remedy="use SGD, Adagrad, Adam or AdamW of torch.optim"
        )
    if any(_has_stepped(state) for state in optimizer.state.values()):
        raise UseError(
            "the optimizer has stepped before, or was loaded", remedy="call ps.distribute with a new optimizer"
        )
    known = {*_KEPT[type(optimizer)], *_OFF, *_WITHOUT_EFFECT}
    strange = [key for key in optimizer.defaults if key not in known]
    if strange:
        raise UseError(f"the servers have no {type(optimizer).__name__}({strange[0]}=)", remedy="use torch 2.13")
    for number, group in enumerate(optimizer.param_groups):
        for key in _OFF:
            if group.get(key):
                raise UseError(
                    f"optimizer group {number}: the servers have no {key}={group[key]!r}", remedy=f"leave {key} out"
                )


def _has_stepped(state: dict[str, Any]) -> bool:
    """Return True for the state of a parameter after a step. Adagrad also has state before."""
    return bool(state) and not ("step" in state and float(state["step"]) == 0)


def rule_of(optimizer: Any, group: dict[str, Any]) -> Rule:
    """Return the rule for a group of a checked optimizer. Raises UseError for numbers that the rule does not accept."""
    decay = float(group["weight_decay"])
    if isinstance(optimizer, optim.SGD):
        momentum = float(group["momentum"])
        return Momentum(_LR, momentum, nesterov=group["nesterov"], l2=decay) if momentum else SGD(_LR, l2=decay)
    eps = float(group["eps"])
    if isinstance(optimizer, optim.Adagrad):
        return Adagrad(_LR, eps=eps, start=float(group["initial_accumulator_value"]), l2=decay)
    beta1, beta2 = (float(beta) for beta in group["betas"])
    if group.get("decoupled_weight_decay", isinstance(optimizer, optim.AdamW)):
        return AdamW(_LR, beta1, beta2, eps=eps, weight_decay=decay)
    return Adam(_LR, beta1, beta2, eps=eps, l2=decay)


def fixed_numbers(optimizer: Any, group: dict[str, Any]) -> dict[str, Any]:
    """Return a group's numbers other than its rate; the rules have them from the beginning."""
    return {key: group[key] for key in (*_KEPT[type(optimizer)], *_OFF) if key in group}


def check_unchanged(number: int, group: dict[str, Any], fixed: dict[str, Any]) -> None:
    """Raise UseError if a scheduler, or the program, changed a number that the servers' rule cannot change."""
    for key, value in fixed.items():
        if group[key] != value:
            raise UseError(
                f"optimizer group {number}: {key} was {value!r} and is now {group[key]!r}, but only lr may change",
                remedy="with OneCycleLR or CyclicLR pass cycle_momentum=False",
            )
