"""Facts that runs of older versions tell in their messages alone.

Events have fields for what `why` reasons about. A run that an older version started lacks some of them: its events are
completed here, by the texts of that version. These texts never change, whatever the messages of today say, and nothing
else in `why` reads a message of ours.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from clusterctl.observe.why.errno_and_signals import of_errno

Message = dict[str, Any]
SILENCE = re.compile(r"for (\d+) s")
LOST = re.compile(r"^(?:the lead on )?node\d+ is lost: ")
HALTED = "stopped by a signal"
CANNOT_START = re.compile(r"^cannot start (?:'(.*?)'|\"(.*?)\"): ")
REASONS = (
    ("out of memory", "out_of_memory"),
    ("too many open files", "open_files"),
    ("segmentation fault", "segfault"),
)
LIMITS = ("MEMORY_LIMIT_MB", "OPEN_FILES")
#: Lines that the runtime and the supervisor wrote into the logs of processes.
OURS = re.compile(r"pass \d+: [\d,]+ steps, |pserver \d+: saved |clusterctl: ")


def complete(event: Message) -> Message:
    """The event, and the cause in it, with the fields that an older version left out."""
    cause = event.get("cause")
    found = _with_facts(event, event.get("event"))
    if cause:
        found = {**found, "cause": _with_facts(cause, cause.get("kind"))}
    return found


def ours_in(lines: Sequence[str]) -> list[int]:
    """The indexes of the lines that clusterctl wrote."""
    return [at for at, line in enumerate(lines) if OURS.match(line)]


def _with_facts(about: Message, name: str | None) -> Message:
    facts = FACTS.get(name or "")
    return {**facts(about, str(about.get("message") or "")), **about} if facts else about


def _of_lost(event: Message, message: str) -> Message:
    silence = SILENCE.search(message)
    return {"why": LOST.sub("", message), "silent_s": float(silence[1]) if silence else None}


def _of_stalled(event: Message, message: str) -> Message:
    return {"halted": HALTED in message}


def _of_exited(event: Message, message: str) -> Message:
    return {
        "reason": next((reason for words, reason in REASONS if words in message), None),
        "limit": next((limit for limit in LIMITS if limit in message), None),
        "ours": ours_in(event.get("tail") or ()),
    }


def _of_failed(event: Message, message: str) -> Message:
    """Of something that a supervisor could not do; the system's own words are in the message."""
    system, command = of_errno(message), CANNOT_START.match(message)
    facts: Message = {"errno": system.errno if system else None, "ours": ours_in(event.get("tail") or ())}
    if command:
        return {**facts, "command": command[1] or command[2] or ""}
    return {**facts, "path": system.subject} if system and system.subject else facts


#: By the name of an event, or the kind of a cause.
FACTS: Mapping[str, Callable[[Message, str], Message]] = {
    "lost": _of_lost,
    "node_lost": _of_lost,
    "stalled": _of_stalled,
    "exited": _of_exited,
    "exit": _of_exited,
    "node": _of_failed,
}
