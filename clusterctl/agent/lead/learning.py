"""Reasons to doubt that a run that succeeds has learned anything. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from clusterctl.agent.lead.messages import ExitReport
from clusterctl.common.errors import first_of
from clusterctl.common.events import RunWarning

MOST_TABLES = 3  # that are named


def find_doubts(trainers: Collection[ExitReport], not_finite: Mapping[str, str]) -> list[RunWarning]:
    """Return the warnings about a run, given how its trainers exited.

    `not_finite` are the tables of which a value was saved that is not finite, each with the first tag of such a save.
    Trainers that do not report their pushes and losses use other programs than our runtime.
    """
    found: list[RunWarning] = []
    pushed = [message.get("pushed") for message in trainers]
    if pushed and not any(word is None or word for word in pushed):
        found.append({"kind": "no_push", "message": "no trainer ever pushed: the model is what it was at the start"})
    losses = [message.get("losses", ()) for message in trainers]
    if sum(sum(pair[:1]) for pair in losses) and not sum(sum(pair[1:]) for pair in losses):
        found.append({"kind": "loss_not_finite", "message": "every loss of the last pass was not finite"})
    if not_finite:
        tables = sorted(not_finite)
        names = f"{'table' if len(tables) == 1 else 'tables'} {first_of(tables, MOST_TABLES)}"
        first = min(not_finite.values(), key=lambda tag: (len(tag), tag))
        message = f"the saved model has values that are not finite, since {first}: {names}"
        found.append({"kind": "model_not_finite", "message": message})
    return found
