"""`clusterctl stop`, and the stop that Ctrl-C asks for."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from clusterctl.cli.invocation import Session, job_ref

if TYPE_CHECKING:
    from clusterctl.cluster.cluster import Cluster, NodeOutcome
    from clusterctl.errors import ClusterctlError
    from clusterctl.inventory import Node
    from clusterctl.observe.members import Members

STOP_S = 300.0  # two graces and their margins, on a node that swaps
OVER = ("dispatched", "succeeded", "failed", "stopped")  # states in which nothing has to be ended
SHOWN = ("dir", "run", "was", "killed", "leftovers", "survivors", "left", "ports_busy", "holders")


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
    from clusterctl.cli.console import plural
    from clusterctl.observe.members import members_of
    from clusterctl.observe.status import find

    named, ref = ref is not None, ref or find(cluster, None)[0]
    nodes = cluster.nodes if nodes is None else nodes
    session.console.say(f"stopping {ref} on {len(nodes)} nodes")
    outcomes = cluster.ask({"op": "stop", "ref": ref}, nodes, answer_s=STOP_S)
    answers = [outcome.get() for outcome in outcomes if outcome.ok]
    members = members_of(cluster.inventory, answers)
    _tell_what_it_took(session, outcomes)
    problem = _problem(outcomes, members)
    survivors = sum(answer["survivors"] for answer in answers)
    silent = members.errors(outcomes)
    if silent and answers:
        done = f"{len(answers)}/{len(outcomes)} nodes, {plural(survivors, 'survivor')}"
        session.console.say(f"stopped: {done}; of the others nothing is known")
    if not named and not silent:
        _tell_other_runs(session, cluster, ref)
    if document:
        job = answers[0]["job"] if answers else ref
        views = [_node(outcome) for outcome in outcomes]
        session.console.finish({"job": job, "survivors": survivors, **members.to_json(), "nodes": views}, problem)
    elif problem is not None:
        raise problem
    unseen = [outcome for outcome in outcomes if not outcome.ok]
    taken = [words for outcome in outcomes if outcome.ok for words in _taken(outcome)]
    ports = "" if taken else ", ports free"
    session.console.say(f"stopped: {len(answers)}/{len(answers)} nodes, 0 survivors{ports}")
    for words in taken:
        session.console.say(f"{words}; the run had ended before")
    for outcome in unseen:
        session.console.say(f"{outcome.error} (not in this run)")


def _tell_other_runs(session: Session, cluster: Cluster, stopped: str) -> None:
    """Who names no job means the newest; another one may be what he wanted to stop."""
    from clusterctl.observe.status import LIVE, jobs

    for job in jobs(cluster)[0]:
        if job["state"] in LIVE and job["job"] != stopped:
            session.console.say(f"{job['job']} runs still     stop it too: clusterctl stop {job['job']}")


def _tell_what_it_took(session: Session, outcomes: list[NodeOutcome[dict[str, Any]]]) -> None:
    for outcome in outcomes:
        if outcome.ok and (killed := outcome.get()["killed"]):
            session.console.say(f"KILL was needed on {outcome.node.label}: {killed} of its processes ignored TERM")
        if outcome.ok and (count := outcome.get()["leftovers"]):
            processes = f"{count} {'process' if count == 1 else 'processes'}"
            session.console.say(f"{outcome.node.label} had {processes} of it without a supervisor")


def _problem(outcomes: list[NodeOutcome[dict[str, Any]]], members: Members) -> ClusterctlError | None:
    """What is not as it should be: nodes that did not answer, processes that are left, ports that are not free."""
    from clusterctl.cluster.cluster import combined

    answered = any(outcome.ok for outcome in outcomes)
    errors: list[ClusterctlError] = [
        error
        for error in members.errors(outcomes)  # a job that never ran, or is gone, need not be everywhere
        if members.run is not None or not answered or error.details.get("reason") != "no_job"
    ]
    for outcome in outcomes:
        errors += _remains(outcome) if outcome.ok else []
    return combined(errors, len(outcomes), "stop") if errors else None


def _remains(outcome: NodeOutcome[dict[str, Any]]) -> Iterator[ClusterctlError]:
    from clusterctl.cli.console import plural
    from clusterctl.errors import NodeError

    answer, label = outcome.get(), outcome.node.label
    if answer["survivors"]:
        who = ", ".join(f"pid {row['pid']} ({row['command']})" for row in answer["left"])
        hint = "they cannot be killed (stuck in the kernel?); clusterctl stop tries again"
        message = f"{plural(answer['survivors'], 'survivor')}: {who}"
        yield NodeError(message, node=label, hint=hint, details={"reason": "survivors"})
    for words in () if _was_over(answer) else _taken(outcome):
        hint = "if it is the job's (a program that clears its environment), end it; else the next start takes another"
        yield NodeError(words, node=label, hint=hint, details={"reason": "port_busy"})


def _was_over(answer: dict[str, Any]) -> bool:
    """Whether nothing had to be ended: what others do since then with the ports that it had is no matter."""
    return answer["was"] in OVER and not answer["leftovers"]


def _taken(outcome: NodeOutcome[dict[str, Any]]) -> Iterator[str]:
    """The ports that are not free, and who has them."""
    for holder in outcome.get()["holders"]:
        who = f"pid {holder['pid']} ({holder['name']})" if holder["pid"] else f"another account (uid {holder['uid']})"
        yield f"port {holder['port']} is not free: {who} listens on it, which does not carry the job's environment"


def _node(outcome: NodeOutcome[dict[str, Any]]) -> dict[str, Any]:
    view: dict[str, Any] = {"node": outcome.node.id, "host": outcome.node.where, "ok": outcome.ok}
    if outcome.error is not None:
        return {**view, "error": outcome.error.to_json()}
    answer = outcome.get()
    return {**view, **{key: answer[key] for key in SHOWN}}


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
