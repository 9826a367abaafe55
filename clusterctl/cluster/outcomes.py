"""The outcomes of a call over many nodes, and one error made of all their errors."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar

from clusterctl.errors import ClusterctlError, NodeError, RefusedError, UsageError
from clusterctl.inventory import Node, fold
from clusterctl.transport import WorkOutcome

T = TypeVar("T")
NodeOutcome = WorkOutcome[Node, T]


def failures(outcomes: Iterable[NodeOutcome[T]]) -> list[NodeOutcome[T]]:
    return [outcome for outcome in outcomes if not outcome.ok]


def raise_failures(outcomes: Sequence[NodeOutcome[T]], doing: str) -> list[T]:
    """Return the values of all nodes, or raise one error that names every failed node.

    The only error, or one that all nodes share, is raised unchanged.
    """
    failed = failures(outcomes)
    if not failed:
        return [outcome.get() for outcome in outcomes]
    raise combined([outcome.error for outcome in failed if outcome.error], len(outcomes), doing)


def combined(errors: Sequence[ClusterctlError], of: int, doing: str) -> ClusterctlError:
    """Combine the errors of several nodes into one: the most severe exit code, every node with its hint."""
    if all(
        error.node is None and (error.message, error.hint) == (errors[0].message, errors[0].hint) for error in errors
    ):
        return errors[0]  # a mistake on this machine
    reasons = {error.details.get("reason") for error in errors}
    if reasons == {"no_job"} and len(errors) == of:
        return UsageError(errors[0].message, hint=errors[0].hint)
    details = {"nodes": [error.to_json() for error in errors]}
    errors = [error for error in errors if error.details.get("reason") != "no_job"] or errors
    if len(errors) == 1:
        only = errors[0]
        only.details = {**only.details, **details}
        return only
    kinds = {type(error) for error in errors}
    kind = kinds.pop() if len(kinds) == 1 else (RefusedError if RefusedError in kinds else NodeError)
    if kind is UsageError:
        return UsageError(errors[0].message, hint=errors[0].hint, details=details)
    lines = fold_errors(errors)
    return kind(f"{doing} failed on {len(errors)} of {of} nodes\n" + "\n".join(lines), details=details)


def fold_errors(errors: Sequence[ClusterctlError]) -> list[str]:
    """Return a line for each distinct message, with its nodes and its hint."""
    groups: dict[tuple[str, str | None], list[str]] = {}
    for error in errors:
        groups.setdefault((error.message, error.hint), []).append(error.node or "?")
    lines = []
    for (message, hint), labels in groups.items():
        ids = [int(label[4:]) for label in labels if label[4:].isdigit()]
        nodes = f"node{fold(ids)}" if len(ids) == 1 else f"node[{fold(ids)}]"
        lines.append(f"  {nodes if ids else ', '.join(labels)}  {message}" + (f"\n      {hint}" if hint else ""))
    return lines
