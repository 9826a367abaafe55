"""Nodes that were lost, and what became of them: killed, started anew, cut off, or only silent."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from clusterctl.observe.why.errno_and_signals import Diagnosis
from clusterctl.observe.why.evidence import Evidence, Incident
from clusterctl.observe.why.node_report import Departure, Message, Story

GONE_QUIETLY_S = 1.5  # a supervisor writes down every second that it lives
REBOOT = "a crash, a power cut or a reboot: last -x and journalctl -b -1 there"
KILLED = "its supervisor was killed, and its processes with it"
KILLER = "kill -9 by somebody there, or by the kernel for want of memory: dmesg on {node} tells"
NETWORK = "look at the network between them: clusterctl check tries all pairs; NODE_GRACE_S is what is borne"
RESUME = "kill -CONT on {node} lets it go on; clusterctl stop ends it"
SILENT = "look at its load, memory and swap then; NODE_GRACE_S is what is borne"


def lost_nodes(evidence: Evidence) -> Iterator[Incident]:
    """Nodes that others lost, and such that nobody could lose any more."""
    told: dict[int, tuple[Story, Message]] = {}
    for story in evidence.stories.values():
        for event in story.find("lost", role=None):
            told.setdefault(_lost_node(event), (story, event))
    for node in set(told) - _mirrored(evidence, told):
        yield _lost(evidence, node, *told[node])
    for node, own in evidence.stories.items():
        if (own.state == "lost" or own.is_closed) and node not in told and not _heard_to_the_end(evidence, own):
            yield _vanished(own)
    cause = evidence.cause
    if cause.get("kind") == "node_lost" and cause.get("node") not in told:
        yield _told_lost(evidence, cause)


def _heard_to_the_end(evidence: Evidence, own: Story) -> bool:
    """Whether a node that looks lost took part in the end of the run: a full disk keeps states as they were before."""
    lead = evidence.stories.get(evidence.lead_node)
    ended = lead.first("ended") if lead is not None else None
    heard = ended is not None and own.node not in ended.get("not_heard_of", [own.node])
    return heard or own.first("ended") is not None or (own is lead and _told_the_end(evidence))


def _told_the_end(evidence: Evidence) -> bool:
    """Whether nodes have the end from the lead; one that lost the lead notes that as the cause."""
    causes = [event.get("cause") or {} for story in evidence.stories.values() for event in story.find("ended")]
    return any(cause.get("kind") != "node_lost" or cause.get("node") != evidence.lead_node for cause in causes)


def _mirrored(evidence: Evidence, told: Mapping[int, tuple[Story, Message]]) -> set[int]:
    """Where the lead and others lost each other, one is to blame: the lead when all others lost it, else those."""
    lead = evidence.lead_node
    others = set(evidence.stories) - {lead}
    deserters = {node for node in others if _has_lost(evidence, node, lead)}
    apart = {node for node in told if node in deserters and told[node][0].node == lead}
    if not apart:
        return set()
    return apart if len(others) > 1 and deserters == others else {lead}


def _has_lost(evidence: Evidence, node: int, other: int) -> bool:
    """Whether `node` noted that it had lost `other`."""
    own = evidence.stories.get(node)
    return own is not None and any(_lost_node(event) == other for event in own.find("lost", role=None))


def _lost_node(event: Message) -> int:
    return int(event["lost_node"] if "lost_node" in event else event["node"])


def _lost(evidence: Evidence, node: int, story: Story, event: Message) -> Incident:
    """As `story` tells in `event`. It began when the node was last heard of."""
    t = story.at(event["t"])
    diagnosis, seen = _why_lost(evidence, node, story, t)
    begins = [t, t - float(event.get("silent_s") or 0.0), seen or t]
    for suspect in story.find("suspect", node=node):
        if suspect["t"] <= event["t"]:
            begins.append(story.at(suspect["t"]) - float(suspect.get("silent_s") or 0))
    back = any(one["t"] > event["t"] for one in story.find("rejoined", node=node))
    awaited = bool(event.get("waits")) and not back
    words = event.get("why") or "nothing heard of it"
    return Incident("node_lost", min(begins), t, node, words, diagnosis, forgiven=back, awaited=awaited)


def _why_lost(evidence: Evidence, node: int, by: Story, t: float) -> tuple[Diagnosis, float | None]:
    """What became of a node that another one lost at `t`, and when it was last seen alive, if that is known."""
    own = evidence.stories.get(node)
    if own is None:
        reason = evidence.silent.get(node)
        now = f"it does not answer now either: {reason}" if reason else "nothing is known of it"
        return Diagnosis("node_down", now, "is {node} on, and on the network? clusterctl check tells"), None
    end = own.goes(t - own.offset_s)
    if end is not None:
        return _why_gone(end), own.at(end.seen) if end.seen else None
    paused = next((event for event in own.find("paused") if own.at(event["t"]) > t > _pause(own, event)), None)
    if paused is not None:
        return Diagnosis("paused", f"{paused['message']}; then it went on", SILENT), _pause(own, paused)
    if _has_lost(evidence, node, by.node):
        words = f"network partition: node{node} and node{by.node} both lived and did not hear each other"
        return Diagnosis("partition", words, NETWORK), None
    words = "it lived, and was not heard: stopped, overloaded, or cut off one way"
    if own.answer.get("halted"):
        return Diagnosis("node_silent", "its supervisor is stopped by a signal (SIGSTOP)", RESUME), None
    return Diagnosis("node_silent", words, SILENT), None


def _pause(own: Story, event: Message) -> float:
    """When a supervisor began not to run, by our clock."""
    return own.at(event["t"] - float(event.get("paused_s") or 0.0))


def _why_gone(end: Departure) -> Diagnosis:
    if end.rebooted:
        return Diagnosis("rebooted", "the node was started anew since", REBOOT)
    return Diagnosis("supervisor_killed", KILLED, KILLER)


def _vanished(own: Story) -> Incident:
    """A supervisor that is gone, and nobody was left to note it."""
    end = Departure(own.answer.get("seen"), bool(own.answer.get("booted")))
    t = own.at(float(end.seen or max((event["t"] for event in own.events), default=own.answer.get("now", 0.0))))
    return Incident("node_lost", t, t + GONE_QUIETLY_S, own.node, "its supervisor is gone", _why_gone(end))


def _told_lost(evidence: Evidence, cause: Message) -> Incident:
    """A node that is lost by the word of somebody who cannot be asked."""
    node, t = int(cause["node"]), evidence.ended_t
    by = next(iter(evidence.stories.values()))
    diagnosis, seen = _why_lost(evidence, node, by, t)
    return Incident("node_lost", min(t, seen or t), t, node, str(cause.get("why")), diagnosis)
