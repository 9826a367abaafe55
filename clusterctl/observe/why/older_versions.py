"""Facts that runs of older versions report only in their messages.

Events have a field for every fact that `why` reasons about. In a run that an older version started, some of these
fields are missing, and this module derives them from that version's messages. The texts here never change, however
messages are worded today. Nothing else in `why` reads our own messages.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from clusterctl.observe.why.errno_and_signals import of_errno

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
#: Lines that the runtime and the supervisor wrote to the logs of processes.
OURS = re.compile(r"pass \d+: [\d,]+ steps, |pserver \d+: saved |clusterctl: ")


def complete(event: dict[str, Any]) -> dict[str, Any]:
    """Return the event, and the cause in it, with the fields that older versions lack."""
    cause = event.get("cause")
    whole = _with_facts(event, event.get("event"))
    return {**whole, "cause": _with_facts(cause, cause.get("kind"))} if cause else whole


def ours_in(lines: Sequence[str]) -> list[int]:
    """Return the indexes of the lines that clusterctl wrote."""
    return [at for at, line in enumerate(lines) if OURS.match(line)]


def _with_facts(about: dict[str, Any], name: str | None) -> dict[str, Any]:
    facts = FACTS.get(name or "")
    return {**facts(about, str(about.get("message") or "")), **about} if facts else about


def _of_lost(event: dict[str, Any], message: str) -> dict[str, Any]:
    silence = SILENCE.search(message)
    return {"why": LOST.sub("", message), "silent_s": float(silence[1]) if silence else None}


def _of_stalled(event: dict[str, Any], message: str) -> dict[str, Any]:
    return {"halted": HALTED in message}


def _of_exited(event: dict[str, Any], message: str) -> dict[str, Any]:
    return {
        "reason": next((reason for words, reason in REASONS if words in message), None),
        "limit": next((limit for limit in LIMITS if limit in message), None),
        "ours": ours_in(event.get("tail") or ()),
    }


def _of_failed(event: dict[str, Any], message: str) -> dict[str, Any]:
    """The facts of an operation that failed in a supervisor; its message quotes the system's error."""
    system, command = of_errno(message), CANNOT_START.match(message)
    facts: dict[str, Any] = {"errno": system.errno if system else None, "ours": ours_in(event.get("tail") or ())}
    if command:
        return {**facts, "command": command[1] or command[2] or ""}
    return {**facts, "path": system.subject} if system and system.subject else facts


#: By the name of an event, or the kind of a cause.
FACTS: Mapping[str, Callable[[dict[str, Any], str], dict[str, Any]]] = {
    "lost": _of_lost,
    "node_lost": _of_lost,
    "stalled": _of_stalled,
    "exited": _of_exited,
    "exit": _of_exited,
    "node": _of_failed,
}
