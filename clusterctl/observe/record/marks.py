"""Descriptions of what happened in a run: one mark for each event that a person wants to see."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable

from clusterctl.cluster import NONSENSE
from clusterctl.common.events import RunWarning
from clusterctl.common.run_state import Event
from clusterctl.observe.record.model import Mark

PHASES = {
    "pservers": "starting pservers",
    "trainers": "all pservers are ready; starting trainers",
    "running": "all processes are running",
    "finishing": "all trainers are done",
    "stopping": "stopping all processes",
}
WITHOUT_PSERVERS = {"trainers": "starting trainers"}


def mark_of(event: Event, t: float, *, has_pservers: bool = True) -> Mark | None:
    """Return the mark of an event at `t`, None if it has none. Raises one of NONSENSE if the event is malformed."""
    describe = _TEXTS.get(event["event"])
    text = describe(event) if describe is not None else None
    if text is None:
        return None
    if event["event"] == "phase" and not has_pservers:
        text = WITHOUT_PSERVERS.get(event["phase"], text)
    if event["event"] in _OF_THE_RUN:
        return Mark(t, event["event"], text)
    if event.get("role") is not None:
        return Mark(t, event["event"], text, int(event["node"]), str(event["role"]), int(event["rank"]))
    return Mark(t, event["event"], text, int(event["node"]))


def by_our_clock(warnings: Iterable[RunWarning], offset_s: float) -> list[RunWarning]:
    """Return warnings with times of our clock. `offset_s` is our clock minus that of the lead, which recorded them."""
    return [{**one, "t": max(0.0, one["t"] + offset_s)} if "t" in one else one for one in warnings]


def warning_text(warning: RunWarning, *, dated: bool = False) -> str:
    """Return the message of a warning. About a lost node it says when that was lost, and when its processes moved.

    Times from before today include the date; with `dated`, all do. If a node reports nonsense, there are no times.
    """
    message, t, lost_s = str(warning["message"]), warning.get("t"), warning.get("lost_s")
    if t is None or lost_s is None:
        return message
    with contextlib.suppress(*NONSENSE, OSError):
        reason, sep, moved = message.partition("; ")
        text = reason.replace(" was lost", f" was lost at {_moment(t - lost_s, dated=dated)}", 1)
        return f"{text}; at {_moment(t, dated=dated)} {moved}" if " moved to " in moved else f"{text}{sep}{moved}"
    return message


def _moment(t: float, *, dated: bool) -> str:
    is_today = time.localtime(t)[:3] == time.localtime()[:3]
    return time.strftime("%H:%M:%S" if is_today and not dated else "%m-%d %H:%M:%S", time.localtime(t))


def _phase(event: Event) -> str | None:
    """Describe a phase. The first one, "gathering", was reported already, with the reason if it is not the first."""
    phase = event["phase"]
    return None if phase == "gathering" else PHASES.get(phase, str(phase))


def _saved(event: Event) -> str | None:
    if not event.get("complete"):
        return None
    return f"checkpoint {event['tag']}" if event.get("checkpoint") else f"saved {event['tag']}"


def _log(event: Event) -> str | None:
    return str(event["message"]) if event.get("level") in ("warning", "error") else None


def _exited(event: Event) -> str | None:
    failed = event["exit_code"] or event.get("unfinished")
    return str(event["message"]) if failed and not event["stopping"] and not event.get("port_taken") else None


def _restarting(event: Event) -> str:
    return f"{event['message']}; restarting in {event['in_s']:g} s ({event['count']})"


def _rolled_back(event: Event) -> str:
    start = f"checkpoint {event['tag']} (step {event['step']:,})" if event["tag"] else "the beginning"
    if event["whole"]:
        return f"rolling back all processes to {start}"
    pservers = [name for name in event["processes"] if name.startswith("pserver")]
    return f"restarting {', '.join(pservers)} from {start}; trainers restart where they were"


def _moved(event: Event) -> str:
    return f"has moved from node{int(event['from_node'])}, which is lost"


def _absent(event: Event) -> str:
    """Describe a node or a process that fell silent or came back."""
    name, message = event["event"], event.get("message")
    if event.get("role") is not None:
        words = {"rejoined": "is restarting", "held": ""}.get(name, "is left out:")
        return " ".join(filter(None, (words, message)))
    if "lost_node" in event:
        return f"has lost contact: {message}"
    state = "has rejoined" if name == "rejoined" else f"is {name}"
    return f"{state}: {message}" if message else state


def _ended(event: Event) -> str | None:
    """Describe the end of the run, which the lead records; other nodes record theirs without `not_heard_of`."""
    return str(event["state"]) if "not_heard_of" in event else None


_TEXTS = {
    "phase": _phase,
    "saved": _saved,
    "copying": lambda event: f"copying {event['tag']} to other nodes, for up to {event['limit_s']:.0f} s",
    "copied": lambda event: f"copied {event['tag']} to other nodes",
    "log": _log,
    "exited": _exited,
    "restarting": _restarting,
    "moved": _moved,
    "resumed_by": lambda event: f"{event['message']}; resumed by {event['by'] or 'a keeper'}",
    "rolled_back": _rolled_back,
    **dict.fromkeys(("stalled", "standstill", "cut_dropped", "state_lost"), lambda event: str(event["message"])),
    "paused": lambda event: f"was paused: {event['message']}",
    "took_over": lambda event: str(event["message"]),
    **dict.fromkeys(("nan", "warned"), lambda event: str(event["message"])),
    **dict.fromkeys(("suspect", "lost", "rejoined", "held"), _absent),
    "ended": _ended,
}
_OF_THE_RUN = (
    "phase",
    "saved",
    "copying",
    "copied",
    "resumed_by",
    "rolled_back",
    "cut_dropped",
    "standstill",
    "warned",
    "ended",
)
