"""Messages of supervisors: the lead can handle every message that passes the check."""

from __future__ import annotations

import contextlib
import random
from typing import Any

import pytest

from clusterctl.agent.lead.actions import SendOrder
from clusterctl.agent.lead.message_schema import FIELDS, NEEDED, check
from clusterctl.agent.lead.state_machine import Lead
from unit.agent.plays import Play

PROCESSES = [("pserver", 0, 0), ("trainer", 0, 0), ("pserver", 1, 1), ("trainer", 1, 1)]
OF_NODE_1 = [("pserver", 1), ("trainer", 1)]
CUT = {"do": "cut", "role": "pserver", "rank": 1}
STRANGE: list[Any] = [None, True, -1, 1 << 70, 1.5, float("nan"), "", "trainer0", "x" * 1000, [], [1], {}, {"a": {}}]
USUAL: dict[str, list[Any]] = {
    "role": ["pserver", "trainer"],
    "rank": [1],
    "attempt": [1, 2],
    "attempts": [{"trainer1": 1}, {"trainer1": 9, "pserver1": 1}],
    "endpoints": [{"pserver1": "b:7164"}],
    "tail": [["Traceback", "ValueError"]],
    "ours": [[], [0]],
    "peers": [[], ["pserver0"]],
    **{name: [None, "x"] for name in ("errno", "reason", "limit")},
    **{name: ["/job/x"] for name in ("command", "path")},
    "step": [0, 5],
    **{name: ["it failed"] for name in ("message", "kind")},
    "signal": ["SIGTERM"],
    "awaits": [[], ["trainer0", "trainer1"]],
    "tag": ["pass-00000", "step-000000005", "../.."],
    "file": ["pserver-00001.safetensors", "trainer-00001.safetensors"],
    "sha256": ["0" * 64],
    "states": [[], [1], [0, 1]],
    "tables": [{}, {"w": {"held": 1, "shape": [1]}}],
    **{name: [0, 1] for name in ("epoch", "exit_code", "pass", "seed", "bytes", "pserver", "pservers")},
    **{
        name: [True, False]
        for name in ("new", "spare", "stopping", "worked", "port_taken", "hopeless", "oom", "stalled", "fenced")
    },
    **{name: [True, False] for name in ("checkpoint", "unsaid", "timed_out")},
    "pushed": [None, True, False],
    "losses": [[], [5, 5], [5, 0]],
    "not_finite": [[], ["w"]],
    "unfinished": [None, "not_left"],
    "uncaught": ["", "KeyError"],
    "endpoint": ["b:7164"],
    "pieces": ["b:8163"],
    "of": ["copy", "merge"],
    "keys": [{}, {"trainer1": "k" * 40}],
    "pace": ["moves", "waits", "stalled"],
    "phase": ["due", "held", "made", "failed", "announced", "of_a_newer_version"],
    "cut": [1, 2],
    "purpose": [1, 2, 3, 8],
    "counts": [[], [0, 5], [7, 2]],
    "table_sums": [[], [0], [3, 1]],
    "waits_for": [[], [1], [5, 6, 7, 8, 9]],
}


def draw_message(rng: random.Random, *kinds: str) -> dict[str, Any]:
    """Return a message that is mostly valid: a field or two may be wrong or missing."""
    kind = rng.choice(kinds or sorted(NEEDED))
    message: dict[str, Any] = {"do": kind}
    for name in sorted({*FIELDS, *USUAL} - {"do"}):
        if name in (*NEEDED[kind], "role", "rank") or kind in ("saved", "cut") or rng.random() < 0.5:
            message[name] = rng.choice(USUAL.get(name, [1]))
    for name in rng.sample(sorted(message), rng.choice((0, 0, 1, 2))):
        message[name] = rng.choice(STRANGE)
        if rng.random() < 0.3:
            del message[name]
    return message


def test_an_accepted_message_never_stops_the_lead() -> None:
    accepted = 0
    for seed in range(200):
        rng = random.Random(seed)
        lead = Lead(PROCESSES, [0, 1], now=0.0, node_grace_s=30, grace_s=5)
        lead.handle(0, {"do": "hello", "endpoints": {"pserver0": "a:7164"}}, 0.0)
        messages = [draw_message(rng) for _ in range(rng.randint(1, 12))]
        for n, message in enumerate(messages):
            with contextlib.suppress(ValueError):
                checked = check(message, 1, OF_NODE_1)
                accepted += 1
                try:
                    lead.handle(1, checked, float(n))
                except Exception as exc:
                    raise AssertionError(f"seed {seed}: {exc!r} of {messages[: n + 1]}") from exc
            lead.tick(float(n))
    assert accepted > 400  # of a thousand


def test_an_accepted_report_about_cuts_never_stops_the_lead() -> None:
    sent: set[str] = set()
    for seed in range(25):
        rng = random.Random(seed)
        lead, number = Play(nodes=2, processes=PROCESSES).reach("running").lead, 0
        messages = [draw_message(rng, "cut") for _ in range(100)]
        for message in messages:
            current = {"cut": number} if rng.random() < 0.9 else {}
            with contextlib.suppress(ValueError):
                checked: Any = check({**message, **current}, 1, OF_NODE_1)
                try:
                    actions = [*lead.handle(1, checked, 1000.0), *lead.handle(0, {**checked, "rank": 0}, 1000.0)]
                except Exception as exc:
                    raise AssertionError(f"seed {seed}: {exc!r} of {messages}") from exc
                orders: list[Any] = [action.message for action in actions if isinstance(action, SendOrder)]
                number = max([number, *(order["cut"] for order in orders)])
                sent |= {order["order"] for order in orders}
    assert sent == {"hold", "make", "write", "drop"}


def test_a_supervisor_may_only_report_its_own_processes() -> None:
    for message in ({"do": "running", "role": "trainer"}, {"do": "logged", "step": 1, "value": 1.0, "weight": 1.0}):
        assert check({**message, "rank": 1}, 1, OF_NODE_1)["rank"] == 1
        with pytest.raises(ValueError, match="trainer0"):
            check({**message, "rank": 0}, 1, OF_NODE_1)


def test_the_port_where_programs_meet_is_reported_by_the_node_of_pserver_0_alone() -> None:
    hello = {"do": "hello", "endpoints": {"rendezvous0": "b:7170"}}
    assert check(hello, 1, [("pserver", 0)]) == hello
    with pytest.raises(ValueError, match="rendezvous0"):
        check(hello, 1, OF_NODE_1)


@pytest.mark.parametrize(
    "message",
    [
        {"do": "hello"},
        {"do": "exited", "role": "trainer", "rank": 1, "exit_code": 1, "stopping": False},
        {"do": "exited", "role": "trainer", "rank": 1, "exit_code": 1, "stopping": False, "step": None},
        {"do": "failed", "message": "it failed"},
        {"do": "running", "role": "trainer", "rank": 1, "of_a_newer_version": {"a": [1]}},
        {**CUT, "phase": "due", "purpose": 1},
        {**CUT, "phase": "held", "cut": 1, "counts": [1, 2], "step": 3, "passes": 0},
        {**CUT, "phase": "made", "cut": 1, "table_sums": [1, 2]},
        {**CUT, "phase": "failed", "cut": 1},
        {**CUT, "phase": "failed", "cut": 1, "waits_for": [0]},
        {**CUT, "phase": "announced", "cut": 1, "step": 3},
        {**CUT, "phase": "of_a_newer_version"},
    ],
)
def test_messages_of_older_and_newer_versions_are_accepted_as_they_are(message: dict[str, Any]) -> None:
    assert check(message, 1, OF_NODE_1) == message


@pytest.mark.parametrize(
    ("message", "problem"),
    [
        ({"do": "kept", "tag": "step-1", "step": 1, "steps": []}, "unknown message"),
        ({"do": "pace", "role": "trainer", "rank": 1, "attempt": 1, "pace": "waits"}, "without for_s"),
        ({**CUT}, "without phase"),
        ({**CUT, "phase": ["held"]}, "invalid phase"),
        ({**CUT, "phase": "held", "cut": 1, "step": 1, "passes": 0}, "without counts"),
        ({**CUT, "phase": "held", "cut": 1, "counts": [-1], "step": 1, "passes": 0}, "invalid counts"),
        ({"do": "stop_wanted", "rank": 1, "attempt": 1}, "without role"),
        ({"do": "rejoin", "tail": [1]}, "invalid tail"),
        ({"do": "logged", "rank": 1, "step": None, "value": 1.0, "weight": 1.0}, "invalid step"),
    ],
)
def test_a_field_has_its_type_in_every_message(message: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        check(message, 1, OF_NODE_1)
