"""Why a job failed: asks all nodes of its newest run for what they know, and reasons over it."""

from __future__ import annotations

import shlex
import time
from collections.abc import Sequence
from dataclasses import dataclass

from clusterctl.cluster import Cluster, Message, NodeOutcome, answers
from clusterctl.cluster.cluster import ANSWER_S
from clusterctl.errors import ClusterctlError
from clusterctl.inventory import Node
from clusterctl.observe.members import Members
from clusterctl.observe.status import DISPATCHED, status
from clusterctl.observe.why.evidence import Incident
from clusterctl.observe.why.first_cause import Explanation, explain
from clusterctl.observe.why.node_report import Story, clock_offset

READINGS = 3  # of each node's clock
STORY_S = 120.0


@dataclass(frozen=True)
class Why:
    """One job's newest run. `stories` are what nodes told, `errors` those of nodes that told nothing."""

    job: str
    members: Members
    state: str
    explanation: Explanation
    stories: tuple[Story, ...]
    errors: list[ClusterctlError]
    started_t: float | None

    @property
    def seconds(self) -> float | None:
        """How long the run took, or takes by now; None when it never began."""
        if self.started_t is None:
            return None
        return max(0.0, (self.explanation.ended_t or time.time()) - self.started_t)


def why(cluster: Cluster, ref: str | None, *, answer_s: float = ANSWER_S) -> Why:
    """About the newest run of job `ref` (None: the newest job of all nodes). Raises when no node knows it.

    Nodes that have not answered after `answer_s` are not asked further.
    """
    seen = status(cluster, ref, answer_s=answer_s)
    if seen.run is None:
        return Why(seen.job, seen.members, DISPATCHED, Explanation(None), (), seen.errors, None)
    answering = [view["node"] for view in seen.nodes if view["ok"]]
    outcomes = ask(cluster, [node for node in seen.members.nodes if node.id in answering], seen.job, seen.run)
    stories = tuple(outcome.get() for outcome in outcomes if outcome.ok)
    errors = [*seen.errors, *(outcome.error for outcome in outcomes if outcome.error)]
    lead = next((story for story in stories if story.node == seen.members.lead), None)
    begun = (lead or stories[0]) if stories else None
    state = "lost" if lead is not None and lead.is_closed else seen.state
    return Why(
        seen.job,
        seen.members,
        state,
        explain(stories, seen.members.lead, _silent(seen.members, stories, errors), state),
        stories,
        errors,
        begun.at(begun.answer["started"]) if begun and begun.answer.get("started") else None,
    )


def ask(cluster: Cluster, nodes: Sequence[Node], job: str, run: str) -> list[NodeOutcome[Story]]:
    """What each node tells, with its clock's offset."""

    def one(node: Node) -> Story:
        with cluster.call(node, {"op": "story", "ref": job, "run": run}) as call:
            readings = []
            for _ in range(READINGS):
                asked = time.time()
                call.send({"now": asked})
                theirs = call.receive().get("now")
                if not answers.moment(theirs):
                    raise ValueError("story: now")
                readings.append((asked, float(theirs or 0.0), time.time()))
            call.send({"tell": True})
            answer = call.result(STORY_S)
        answers.check("story", answer)
        return Story(node.id, *clock_offset(readings), answer)

    return cluster.map(one, nodes)


def _silent(members: Members, stories: Sequence[Story], errors: Sequence[ClusterctlError]) -> dict[int, str]:
    told = {story.node for story in stories}
    reasons = {error.node: error.message for error in errors}
    return {node.id: reasons.get(node.label, "not asked") for node in members.nodes if node.id not in told}


def to_json(found: Why) -> Message:
    """The document of `why --json`."""
    known = found.explanation
    by_id = found.members.by_id
    last = known.checkpoint

    def told(one: Incident) -> Message:
        return _incident(one, by_id[one.node].where if one.node in by_id else None)

    return {
        "job": found.job,
        "run": found.members.run,
        "state": found.state,
        **found.members.to_json(),
        "cause": told(known.cause) if known.cause else None,
        "advice": advice(found),
        "notes": list(known.notes),
        "then": [told(one) for one in known.then],
        "alike": [told(one) for one in known.alike],
        "before": [told(one) for one in known.before],
        "open": [told(one) for one in known.open],
        "stopped": known.stopped,
        "not_heard_of": None if known.not_heard_of is None else list(known.not_heard_of),
        "pass": known.pass_,
        "step": known.step,
        "seconds": found.seconds,
        "checkpoint": {name: last.get(name) for name in ("tag", "step")} if last else None,
        "clocks": [
            {"node": story.node, "offset_s": story.offset_s, "margin_s": story.margin_s} for story in found.stories
        ],
        "unknown": [{"node": error.node, "message": error.message} for error in found.errors],
    }


def advice(found: Why) -> str | None:
    """What to do about the cause, where there is something to do. People paste it: a subject is a program's word."""
    cause = found.explanation.cause
    if cause is None or not cause.diagnosis.advice:
        return None
    where = f"node{cause.node}" if cause.node is not None else "the node"
    subject = shlex.quote(cause.diagnosis.subject or "")
    return cause.diagnosis.advice.replace("{node}", where).replace("{subject}", subject)


def _incident(one: Incident, host: str | None) -> Message:
    said = one.diagnosis
    return {
        "kind": one.kind,
        "reason": said.kind,
        "t": one.onset,
        "noted": one.t,
        "node": one.node,
        "host": host,
        "role": one.role,
        "rank": one.rank,
        "attempt": one.attempt if one.role else None,
        "message": one.message,
        "words": said.words,
        "error": said.error,
        "where": said.where,
        "exit_code": one.exit_code,
        "signal": said.signal,
        "errno": said.errno,
        "subject": said.subject,
        "times": one.times,
        "lines": [{"t": t, "line": line} for t, line in one.lines],
    }
