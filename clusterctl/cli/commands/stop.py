"""`clusterctl stop`, and the stop triggered by Ctrl-C."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from clusterctl.cli import style
from clusterctl.cli.invocation import Invocation

if TYPE_CHECKING:
    from clusterctl.cluster import Cluster, NodeOutcome
    from clusterctl.errors import ClusterctlError
    from clusterctl.inventory import Node
    from clusterctl.observe.record.members import Members

STOP_S = 300.0  # two grace periods and their margins, on a node that swaps
OVER = ("dispatched", "succeeded", "failed", "stopped")  # states in which nothing needs to be stopped
SHOWN = ("dir", "run", "was", "killed", "leftovers", "survivors", "left", "ports_busy", "holders")


def stop(invocation: Invocation, job: str | None) -> None:
    from clusterctl.cli.commands.scheduled import stop_without_run
    from clusterctl.schedulers import NoRunError

    is_done = False
    while not is_done:
        try:
            _stop(invocation, job)
            is_done = True
        except NoRunError as none:
            job, is_done = none.job.id, stop_without_run(invocation, none.job)


def _stop(invocation: Invocation, job: str | None) -> None:
    with invocation.cluster_of(job, whole=True) as cluster:
        invocation.need_nodes()
        stop_job(invocation, cluster, invocation.job_of(cluster, job))


def stop_job(
    invocation: Invocation,
    cluster: Cluster,
    ref: str | None,
    *,
    nodes: Sequence[Node] | None = None,
    document: bool = True,
) -> None:
    """Stop a job on `nodes` (None: all) and report what is left; raise if anything is left.

    A node that is not in the newest run need not answer.
    """
    from clusterctl.cli.console import plural
    from clusterctl.observe.record.members import members_of
    from clusterctl.observe.record.status import find

    ref = ref or find(cluster, None)[0]
    nodes = cluster.nodes if nodes is None else nodes
    invocation.console.say(f"stopping {ref} on {plural(len(nodes), 'node')}")
    with invocation.progress.operation("stopping"):
        outcomes = cluster.ask({"op": "stop", "ref": ref}, nodes, answer_s=STOP_S)
    answers = [outcome.get() for outcome in outcomes if outcome.ok]
    members = members_of(cluster.inventory, answers)
    _report_kills(invocation, outcomes)
    problem = _problem(outcomes, members)
    survivors = sum(answer["survivors"] for answer in answers)
    silent = members.errors(outcomes)
    if silent and answers:
        summary = f" {len(answers)}/{len(outcomes)} nodes, {_processes(survivors)} left"
        invocation.console.say(style.warning("stopped:") + f"{summary}; nothing is known about the others")
    if document:
        job = answers[0]["job"] if answers else ref
        views = [_node(outcome) for outcome in outcomes]
        invocation.console.finish({"job": job, "survivors": survivors, **members.to_json(), "nodes": views}, problem)
    elif problem is not None:
        raise problem
    unseen = [outcome for outcome in outcomes if not outcome.ok]
    taken = [message for outcome in outcomes if outcome.ok for message in _taken(outcome)]
    ports = "" if taken else ", ports free"
    summary = f" {len(answers)}/{len(answers)} nodes, 0 processes left{ports}"
    invocation.console.say(style.good("stopped:") + summary)
    for message in taken:
        invocation.console.say(style.warning(f"{message}; the run had already ended"))
    if answers and all(map(_was_over, answers)):
        invocation.console.say(_how_it_was_over(answers, members))
    for outcome in unseen:
        invocation.console.say(style.warning(f"{outcome.error} (not in this run)"))


def _how_it_was_over(answers: Sequence[dict[str, Any]], members: Members) -> str:
    """Return the line for a job that did not run any more."""
    import datetime

    from clusterctl.cli.console import human_time

    ends = [answer["ended"] for answer in answers if answer.get("ended") and answer["run"] == members.run]
    if not ends:
        return "it was not running"
    last = max(ends, key=lambda end: float(end["t"]))
    when = datetime.datetime.fromtimestamp(last["t"]).strftime("%Y-%m-%d %H:%M")
    ago = human_time(max(0.0, time.time() - last["t"]))
    return "it had already ended: " + style.state(last["state"]) + f" at {when}, {ago} ago"


def _report_kills(invocation: Invocation, outcomes: list[NodeOutcome[dict[str, Any]]]) -> None:
    for outcome in outcomes:
        if outcome.ok and (killed := outcome.get()["killed"]):
            line = f"{outcome.node.label}: {_processes(killed)} ignored TERM and needed KILL"
            invocation.console.say(style.warning(line))
        if outcome.ok and (count := outcome.get()["leftovers"]):
            line = f"{outcome.node.label}: stopped {_processes(count)} left behind without a supervisor"
            invocation.console.say(style.warning(line))


def _processes(count: int) -> str:
    return f"{count} {'process' if count == 1 else 'processes'}"


def _problem(outcomes: list[NodeOutcome[dict[str, Any]]], members: Members) -> ClusterctlError | None:
    """Return the error to report: nodes that did not answer, processes that are left, ports that are taken."""
    from clusterctl.cluster import combined

    answered = any(outcome.ok for outcome in outcomes)
    errors: list[ClusterctlError] = [
        error
        for error in members.errors(outcomes)  # a job that never ran, or was removed, need not be on all nodes
        if members.run is not None or not answered or error.details.get("reason") != "no_job"
    ]
    for outcome in outcomes:
        errors += _remains(outcome) if outcome.ok else []
    return combined(errors, len(outcomes), "stop") if errors else None


def _remains(outcome: NodeOutcome[dict[str, Any]]) -> Iterator[ClusterctlError]:
    from clusterctl.errors import NodeError

    answer, label = outcome.get(), outcome.node.label
    if answer["survivors"]:
        processes = ", ".join(f"pid {row['pid']} ({row['command']})" for row in answer["left"])
        hint = "KILL had no effect (stuck in the kernel?); run clusterctl stop again to retry"
        message = f"{_processes(answer['survivors'])} left: {processes}"
        yield NodeError(message, node=label, hint=hint, details={"reason": "survivors"})
    for message in () if _was_over(answer) else _taken(outcome):
        hint = "kill it if it belongs to the job (it may have cleared its environment); start can use another port"
        yield NodeError(message, node=label, hint=hint, details={"reason": "port_busy"})


def _was_over(answer: dict[str, Any]) -> bool:
    """True if nothing had to be stopped; the present users of the job's former ports then do not matter."""
    return answer["was"] in OVER and not answer["leftovers"]


def _taken(outcome: NodeOutcome[dict[str, Any]]) -> Iterator[str]:
    """Describe the ports that are taken, and the process on each."""
    for holder in outcome.get()["holders"]:
        owner = f"pid {holder['pid']} ({holder['name']})" if holder["pid"] else f"another account (uid {holder['uid']})"
        yield f"port {holder['port']} is in use by {owner}, without the job's environment"


def _node(outcome: NodeOutcome[dict[str, Any]]) -> dict[str, Any]:
    view: dict[str, Any] = {"node": outcome.node.id, "host": outcome.node.where, "ok": outcome.ok}
    if outcome.error is not None:
        return {**view, "error": outcome.error.to_json()}
    answer = outcome.get()
    return {**view, **{key: answer[key] for key in SHOWN}}


@contextlib.contextmanager
def uninterrupted(invocation: Invocation) -> Iterator[None]:
    """Answer Ctrl-C with a message instead of an interrupt: a half-done stop is worse than a slow one."""

    def on_interrupt(*_: object) -> None:
        invocation.console.warn("still stopping; please wait, so that no node is left half stopped")

    old = signal.signal(signal.SIGINT, on_interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, old)
