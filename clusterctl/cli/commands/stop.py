"""`clusterctl stop`, and the stop that Ctrl-C asks for."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from clusterctl.cli.session import Session, job_ref

if TYPE_CHECKING:
    from clusterctl.cluster import Cluster, NodeOutcome
    from clusterctl.errors import ClusterctlError
    from clusterctl.inventory import Node
    from clusterctl.observe.members import Members

STOP_S = 300.0  # two graces and their margins, on a node that swaps


def stop(session: Session, job: str | None) -> None:
    with session.whole_cluster() as cluster:
        stop_job(session, cluster, job_ref(cluster.settings, job))


def stop_job(
    session: Session,
    cluster: Cluster,
    ref: str | None,
    *,
    nodes: Sequence[Node] | None = None,
    document: bool = True,
) -> None:
    """Stops a job on `nodes` (None: all) and says what is left; raises unless that is nothing, everywhere.

    A node that is not in the newest run need not answer.
    """
    from clusterctl.observe.members import members_of
    from clusterctl.observe.status import find

    ref = ref or find(cluster, None)[0]
    nodes = cluster.nodes if nodes is None else nodes
    session.console.say(f"stopping {ref} on {len(nodes)} nodes")
    outcomes = cluster.ask({"op": "stop", "ref": ref}, nodes, answer_s=STOP_S)
    answers = [outcome.get() for outcome in outcomes if outcome.ok]
    members = members_of(cluster.inventory, answers)
    survivors = sum(answer["survivors"] for answer in answers)
    for outcome in outcomes:
        if outcome.ok and outcome.get()["killed"]:
            killed = outcome.get()["killed"]
            session.console.say(f"KILL was needed on {outcome.node.label}: {killed} of its processes ignored TERM")
    problem = _problem(outcomes, members, survivors)
    if document:
        job = answers[0]["job"] if answers else ref
        views = [_node(outcome) for outcome in outcomes]
        session.console.finish({"job": job, "survivors": survivors, **members.to_json(), "nodes": views}, problem)
    elif problem is not None:
        raise problem
    busy = sorted({port for answer in answers for port in answer["ports_busy"]})
    ports = "ports free" if not busy else f"ports {', '.join(map(str, busy))} are used by others"
    unseen = [outcome for outcome in outcomes if not outcome.ok]
    counted = len(outcomes) - len(unseen)
    session.console.say(f"stopped: {len(answers)}/{counted} nodes, {survivors} processes left, {ports}")
    for outcome in unseen:
        session.console.say(f"{outcome.error} (not in this run)")


def _problem(outcomes: list[NodeOutcome[dict[str, Any]]], members: Members, survivors: int) -> ClusterctlError | None:
    from clusterctl.cluster import combined
    from clusterctl.errors import NodeError

    errors = members.errors(outcomes)
    if errors:
        return combined(errors, len(outcomes), "stop")
    if survivors:
        labels = [o.node.label for o in outcomes if o.ok and o.get()["survivors"]]
        hint = "they cannot be killed (stuck in the kernel?); clusterctl stop tries again"
        return NodeError(f"{survivors} processes are left on {', '.join(labels)}", hint=hint)
    return None


def _node(outcome: NodeOutcome[dict[str, Any]]) -> dict[str, Any]:

    view: dict[str, Any] = {"node": outcome.node.id, "host": outcome.node.where, "ok": outcome.ok}
    if outcome.error is not None:
        return {**view, "error": outcome.error.to_json()}
    answer = outcome.get()
    return {**view, **{key: answer[key] for key in ("dir", "run", "was", "killed", "survivors", "ports_busy")}}


@contextlib.contextmanager
def uninterrupted(session: Session) -> Iterator[None]:
    """Within, Ctrl-C is answered with a word: a stop that is half done is worse than a slow one."""

    def patience(*_: object) -> None:
        session.console.warn("still stopping: a moment more, so that nothing is left half stopped")

    old = signal.signal(signal.SIGINT, patience)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, old)
