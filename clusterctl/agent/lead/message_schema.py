"""What supervisors may say to the lead: the shape of every word, and whose processes it may be about.

Nodes are known by their keys, and not believed for it: a word of another shape would end the lead's supervisor, and
the run with it, in nobody's name.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any, Callable

from clusterctl.agent.lead.process_table import name_of
from clusterctl.agent.lead.restart_policy import Key
from clusterctl.common.manifest import check_receipt
from clusterctl.common.safe_json import is_whole

PLACE = re.compile(r"[\w.:%\[\]-]{1,255}:\d{1,5}", re.ASCII)
Message = dict[str, Any]


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_truth(value: Any) -> bool:
    return isinstance(value, bool)


def _is_count(value: Any) -> bool:
    return is_whole(value) and value >= 0


def _is_number(value: Any) -> bool:
    return isinstance(value, float) or is_whole(value)  # a larger one is none that can be counted with


def _is_place(value: Any) -> bool:
    """Other nodes put it into the environment of their processes."""
    return isinstance(value, str) and PLACE.fullmatch(value) is not None


def _are_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(line, str) for line in value)


def _by_name(is_right: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, dict) and all(is_right(inside) for inside in value.values())


#: What each word cannot do without. `kept` only the lead's own supervisor says.
NEEDED: Mapping[str, Collection[str]] = {
    "hello": (),
    "ready": ("role", "rank", "endpoint"),
    "running": ("role", "rank"),
    "exited": ("role", "rank", "exit_code", "stopping"),
    "failed": ("message",),
    "stop_wanted": (),
    "rejoin": (),
    "idle": (),
    "saved": ("role", "rank"),  # and a receipt
    "logged": ("rank", "step", "value", "weight"),
    "pace": ("role", "rank", "attempt", "pace"),
}
FIELDS: Mapping[str, Callable[[Any], bool]] = {
    **dict.fromkeys(("role", "message", "pace", "command", "path"), _is_text),
    **dict.fromkeys(("errno", "reason", "limit"), lambda value: value is None or _is_text(value)),
    **dict.fromkeys(("new", "stopping", "worked", "port_taken", "hopeless", "oom", "stalled"), _is_truth),
    **dict.fromkeys(("rank", "attempt", "epoch"), _is_count),
    **dict.fromkeys(("t", "value", "weight", "for_s"), _is_number),
    "exit_code": is_whole,
    "pushes": lambda value: value is None or _is_count(value),
    "step": lambda value: value is None or _is_count(value),
    **dict.fromkeys(("tail", "peers"), _are_texts),
    "ours": lambda value: isinstance(value, list) and all(map(_is_count, value)),
    "endpoint": _is_place,
    "endpoints": _by_name(_is_place),
    "attempts": _by_name(_is_count),
}


def check(said: Mapping[str, Any], node: int, processes: Collection[Key]) -> Message:
    """What the supervisor of `node`, which has these processes, says; raises ValueError when none would say that."""
    word = said.get("do")
    needed = NEEDED.get(word) if isinstance(word, str) else None
    if needed is None:
        raise ValueError(f"there is no word {word!r:.40}")
    who = ("role", "rank") if "role" in said or "attempt" in said else ()
    wait = ("for_s", "message") if said.get("pace") == "waits" else ()
    missing = [name for name in (*needed, *who, *wait) if name not in said]
    wrong = [name for name, is_right in FIELDS.items() if name in said and not is_right(said[name])]
    if missing or wrong:
        raise ValueError(f"{word!r} with no {missing[0]}" if missing else f"{word!r} with a strange {wrong[0]}")
    _check_whose(said, processes)
    return {**said, **_receipt(said, node)} if word == "saved" else dict(said)


def _check_whose(said: Mapping[str, Any], processes: Collection[Key]) -> None:
    """It may speak of its own processes only."""
    own = {name_of(key) for key in processes}
    named = {*said.get("endpoints", ()), *said.get("attempts", ())}
    if "rank" in said:
        named.add(name_of((said.get("role", "trainer"), said["rank"])))
    if not named <= own:
        raise ValueError(f"{said['do']!r} about {min(named - own)!r:.40}, which is not there")


def _receipt(said: Mapping[str, Any], node: int) -> Message:
    try:
        return {**check_receipt(said, said["rank"]), "node": node}
    except (AttributeError, KeyError, TypeError) as exc:
        raise ValueError(f"no receipt: {exc!r:.80}") from None
