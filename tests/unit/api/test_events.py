"""Events as values: every recorded kind has a class, and nothing that a program writes breaks the stream."""

from __future__ import annotations

import ast
import dataclasses
from typing import Any, TypeGuard

import pytest

from clusterctl.api.events import KINDS, Event, Log, Step, event_of
from house.source import tree
from unit.api.events_recorded import PROCESS, RECORDED

ABOUT = {"v": 1, "t": 12.5, "node": 2, "seq": 7}


def declared() -> dict[str, set[str]]:
    """Return the fields of the events that supervisors and the lead record, by the name of the event."""
    found: dict[str, set[str]] = {}
    own: dict[str, dict[str, str]] = {}
    for node in tree("common.events").body:
        if isinstance(node, ast.ClassDef):
            fields = {ast.unparse(one.target): ast.unparse(one.annotation) for one in node.body if is_field(one)}
            for base in node.bases:
                fields = {**own.get(ast.unparse(base), {}), **fields}
            own[node.name] = fields
            if "event" in fields:
                name = ast.literal_eval(fields.pop("event").removeprefix("Literal[").removesuffix("]"))
                found.setdefault(name, set()).update(fields)
    return found


def is_field(node: ast.stmt) -> TypeGuard[ast.AnnAssign]:
    return isinstance(node, ast.AnnAssign)


#: Facts for `clusterctl why`, in `raw` only.
ONLY_RAW = {
    *("errno", "command", "path", "subject", "pids", "state", "why", "worked", "ours", "pushes", "pushed", "losses"),
    *(
        "limit",
        "peers",
        "oom",
        "stalled",
        "fenced",
        "hopeless",
        "port_taken",
        "unfinished",
        "uncaught",
        "unsaid",
        "warnings",
    ),
    *("unconnected", "closed_s", "timed_out"),
}


@pytest.mark.parametrize(("name", "fields"), declared().items())
def test_every_event_that_is_recorded_has_a_class_with_its_fields(name: str, fields: set[str]) -> None:
    assert len(declared()) > 20
    known = {field.name for field in dataclasses.fields(KINDS[name])}
    assert fields - known - (ONLY_RAW if name != "ended" else ONLY_RAW - {"state"}) == set()


@pytest.mark.parametrize(("name", "fields"), RECORDED.items())
def test_a_recorded_event_becomes_a_value_with_its_fields(name: str, fields: dict[str, Any]) -> None:
    event = event_of({**ABOUT, **PROCESS, "event": name, **fields})
    assert type(event) is KINDS[name]
    assert (event.name, event.t, event.node, event.process, event.attempt) == (name, 12.5, 2, "trainer1", 1)
    for field, value in fields.items():
        shown = getattr(event, {"pass": "pass_"}.get(field, field))
        assert shown == (tuple(value) if isinstance(value, list) else value)
    assert event.raw["seq"] == 7


def test_every_class_has_an_example() -> None:
    assert set(RECORDED) == set(KINDS)


def test_an_unknown_event_is_a_plain_one_with_all_that_was_recorded() -> None:
    event = event_of({**ABOUT, "event": "eclipse", "moon": "full"})
    assert type(event) is Event
    assert (event.name, event.node, event.role, event.process) == ("eclipse", 2, None, None)
    assert event.raw["moon"] == "full"


@pytest.mark.parametrize("fields", [{}, {"step": "3"}, {"step": True}, {"step": None}, {"step": [1]}])
def test_an_event_without_a_field_that_it_needs_is_a_plain_one(fields: dict[str, Any]) -> None:
    assert type(event_of({**ABOUT, "event": "step", **fields})) is Event


def test_a_malformed_field_that_an_event_may_lack_is_none() -> None:
    event = event_of({**ABOUT, "event": "step", "step": 3, "loss": "nan", "rank": "x", "role": 5})
    assert isinstance(event, Step)
    assert (event.step, event.loss, event.rank, event.role) == (3, None, None, None)
    log = event_of({**ABOUT, "event": "log", "values": {"auc": "high"}})
    assert isinstance(log, Log)
    assert log.values is None


def test_events_cannot_be_changed_and_are_equal_by_their_fields() -> None:
    one, other = (event_of({**ABOUT, "event": "step", "step": 3, "seq": seq}) for seq in (1, 2))
    assert one == other
    with pytest.raises(dataclasses.FrozenInstanceError):
        one.t = 0.0  # type: ignore[misc]
