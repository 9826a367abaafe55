"""Lost nodes, and the fate of each: supervisor killed, rebooted, cut off, or only silent."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from clusterctl.observe.why.clocks import difference
from clusterctl.observe.why.errno_and_signals import Diagnosis
from clusterctl.observe.why.evidence import Evidence, Incident
from clusterctl.observe.why.node_report import Departure, NodeReport

GONE_QUIETLY_S = 1.5  # a supervisor records every second that it is alive
REBOOT = "{node} crashed, lost power or was rebooted: see last -x and journalctl -b -1 there"
KILLED = "its supervisor was killed, and its processes with it"
KILLER = "somebody ran kill -9 there, or the kernel was out of memory: see dmesg on {node}"
NETWORK = "check the network between them: clusterctl check tries all pairs; NODE_GRACE_S is the silence allowed"
CLOCKS = "set the clocks first (timedatectl set-ntp true)"
RESUME = "resume it with kill -CONT on {node}, or end the run with clusterctl stop"
WITHOUT = (
    "make sure {node} is up and on the network, then run clusterctl check; to go on without it, add --allow-partial to "
    "start --resume"
)
SILENT = "check its load, memory and swap at that time; NODE_GRACE_S is the silence allowed"


def lost_nodes(evidence: Evidence) -> Iterator[Incident]:
    """Yield the nodes that others lost, and those that were gone when no node was left to notice."""
    reported: dict[int, tuple[NodeReport, dict[str, Any]]] = {}
    for report in evidence.reports.values():
        for event in report.find("lost", role=None):
            reported.setdefault(_lost_node(event), (report, event))
    for node in set(reported) - _mirrored(evidence, reported):
        yield _lost(evidence, node, *reported[node])
    for node, own in evidence.reports.items():
        gone = (own.state == "lost" or own.is_closed) and not _has_lost(evidence, node, evidence.lead_node)
        if gone and node not in reported and not _took_part_to_the_end(evidence, own):
            yield _vanished(own)
    cause = evidence.cause
    if cause.get("kind") == "node_lost" and cause.get("node") not in reported:
        yield _lost_by_cause(evidence, cause)


def _took_part_to_the_end(evidence: Evidence, own: NodeReport) -> bool:
    """Return True if a node that looks lost took part in the end of the run. A full disk leaves its state stale."""
    lead = evidence.reports.get(evidence.lead_node)
    ended = lead.first("ended") if lead is not None else None
    heard = ended is not None and own.node not in ended.get("not_heard_of", [own.node])
    return heard or own.first("ended") is not None or (own is lead and _lead_announced_the_end(evidence))


def _lead_announced_the_end(evidence: Evidence) -> bool:
    """Return True if nodes have the end from the lead. A node that lost the lead records that as the cause."""
    causes = [event.get("cause") or {} for report in evidence.reports.values() for event in report.find("ended")]
    return any(cause.get("kind") != "node_lost" or cause.get("node") != evidence.lead_node for cause in causes)


def _mirrored(evidence: Evidence, reported: Mapping[int, tuple[NodeReport, dict[str, Any]]]) -> set[int]:
    """The nodes to leave out where the lead and other nodes lost each other.

    The lead is to blame if all others lost it, otherwise the others are.
    """
    lead = evidence.lead_node
    others = set(evidence.reports) - {lead}
    deserters = {node for node in others if _has_lost(evidence, node, lead)}
    apart = {node for node in reported if node in deserters and reported[node][0].node == lead}
    if not apart:
        return set()
    return apart if len(others) > 1 and deserters == others else {lead}


def _has_lost(evidence: Evidence, node: int, other: int) -> bool:
    """Return True if `node` recorded that it had lost `other`."""
    own = evidence.reports.get(node)
    return own is not None and any(_lost_node(event) == other for event in own.find("lost", role=None))


def _lost_node(event: dict[str, Any]) -> int:
    return int(event["lost_node"] if "lost_node" in event else event["node"])


def _lost(evidence: Evidence, node: int, report: NodeReport, event: dict[str, Any]) -> Incident:
    """The loss that `report` reports in `event`. It began at the node's last sign of life."""
    t = report.at(event["t"])
    diagnosis, seen = _why_lost(evidence, node, report, t)
    begins = [t, t - float(event.get("silent_s") or 0.0), seen or t]
    for suspect in report.find("suspect", node=node):
        if suspect["t"] <= event["t"]:
            begins.append(report.at(suspect["t"]) - float(suspect.get("silent_s") or 0))
    back = any(one["t"] > event["t"] for one in report.find("rejoined", node=node))
    awaited = bool(event.get("waits")) and not back
    message = event.get("why") or "no heartbeat"
    lost = Incident("node_lost", min(begins), t, node, message, diagnosis, forgiven=back, awaited=awaited)
    return _dated(lost, seen, event.get("closed_s")) if seen else lost


def _dated(lost: Incident, seen: float, closed_s: float | None) -> Incident:
    """Say when a supervisor ended that was `seen` alive: the end of a killed one closed its connection to the lead."""
    until = min(lost.t, seen + GONE_QUIETLY_S)
    if closed_s is None or lost.diagnosis.kind != "supervisor_killed" or lost.t - closed_s > until:
        return replace(lost, until=until)
    onset = max(seen, lost.t - closed_s)
    return replace(lost, onset=onset, until=onset)


def _why_lost(evidence: Evidence, node: int, by: NodeReport, t: float) -> tuple[Diagnosis, float | None]:
    """The reason why node `by` lost a node at `t`, and when the node was last seen alive, if known."""
    own = evidence.reports.get(node)
    if own is None:
        reason = evidence.silent.get(node)
        now = f"it still does not answer: {reason}" if reason else "nothing else is known about it"
        return Diagnosis("node_down", now, WITHOUT), None
    end = own.departure(t - own.offset_s)
    if end is not None:
        return _why_gone(end), own.at(end.seen) if end.seen else None
    paused = next((event for event in own.find("paused") if own.at(event["t"]) > t > _pause(own, event)), None)
    if paused is not None:
        return Diagnosis("paused", f"{paused['message']}; then it continued", SILENT), _pause(own, paused)
    if _has_lost(evidence, node, by.node):
        return _partition(own, by), None
    words = "it was running, but no heartbeat arrived: stopped, overloaded, or cut off in one direction"
    if own.answer.get("halted"):
        return Diagnosis("node_silent", "its supervisor is stopped by a signal (SIGSTOP)", RESUME), None
    return Diagnosis("node_silent", words, SILENT), None


def _partition(own: NodeReport, by: NodeReport) -> Diagnosis:
    words = f"network partition: node{own.node} and node{by.node} were both running but could not reach each other"
    apart = difference(own, by)
    if apart is None:
        return Diagnosis("partition", words, NETWORK)
    return Diagnosis("partition", f"{words}, and their clocks differ by {apart}", f"{CLOCKS}; {NETWORK}")


def _pause(own: NodeReport, event: dict[str, Any]) -> float:
    """The time at which a supervisor's pause began, by our clock."""
    return own.at(event["t"] - float(event.get("paused_s") or 0.0))


def _why_gone(end: Departure) -> Diagnosis:
    if end.rebooted:
        return Diagnosis("rebooted", "the node has been rebooted since", REBOOT)
    return Diagnosis("supervisor_killed", KILLED, KILLER)


def _vanished(own: NodeReport) -> Incident:
    """A supervisor that was gone when no node was left to notice."""
    end = Departure(own.answer.get("seen"), bool(own.answer.get("booted")))
    t = own.at(float(end.seen or max((event["t"] for event in own.events), default=own.answer.get("now", 0.0))))
    until = t + GONE_QUIETLY_S
    return Incident("node_lost", t, until, own.node, "its supervisor is gone", _why_gone(end), until=until)


def _lost_by_cause(evidence: Evidence, cause: dict[str, Any]) -> Incident:
    """A node that the cause of the run's end names as lost, reported by a node that does not answer."""
    node, t = int(cause["node"]), evidence.ended_t
    by = next(iter(evidence.reports.values()))
    diagnosis, seen = _why_lost(evidence, node, by, t)
    return Incident("node_lost", min(t, seen or t), t, node, str(cause.get("why")), diagnosis)
