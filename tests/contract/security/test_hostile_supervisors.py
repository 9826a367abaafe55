"""Anyone with the keys of a node's supervisor can end the run in that node's name, but nothing more.

The lead survives everything that such a supervisor sends, and other nodes only get orders that make sense.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from clusterctl.agent.event_loop import EventLoop
from clusterctl.common.manifest import is_tag
from contract.security.liars import EVIL
from unit.agent.wires import Follower, Keys, Lead, run_until

Message = dict[str, Any]
MEMBERS = (0, 1, 2)  # the second one is hostile
HEARTBEAT_EVERY_S = 0.02
PLACE = re.compile(r"[\w.-]+:\d{1,5}")
PROCESSES = [
    {"role": "pserver", "rank": 0, "node": 1},
    *({"role": "trainer", "rank": rank, "node": rank} for rank in MEMBERS),
]
PSERVER = {"role": "pserver", "rank": 0, "attempt": 1}
TRAINER = {"role": "trainer", "rank": 1, "attempt": 1}
RECEIPT = {"tag": "step-1", "pass": 0, "step": 1, "mode": "sync", "seed": 0, "pserver": 0, "pservers": 1}
RECEIPT |= {"file": "pserver-00000.safetensors", "bytes": 1, "sha256": "0" * 64, "tables": {}, "checkpoint": True}
# : Messages that honest supervisors send during a run.
MESSAGES: list[Message] = [
    {"do": "hello", "epoch": 0, "endpoints": {"pserver0": "h:1"}, "new": True},
    {"do": "ready", **PSERVER, "endpoint": "h:1"},
    {"do": "running", **TRAINER},
    {"do": "exited", **TRAINER, "exit_code": 1, "stopping": False, "message": "m", "tail": ["t"], "worked": True}
    | {"pushes": 5, "t": 1.7e9, "port_taken": False, "hopeless": False},
    {"do": "exited", **TRAINER, "exit_code": 0, "stopping": False, "message": "m", "tail": [], "pushes": 5, "t": 1.0},
    {"do": "failed", "message": "m", "t": 1.7e9, **TRAINER, "tail": ["t"]},
    {"do": "idle", "epoch": 0, "attempts": {"pserver0": 1, "trainer1": 1}, "stopping": False},
    {"do": "saved", **RECEIPT, **PSERVER, "node": 1},
    {"do": "kept", "tag": "step-1", "step": 1, "steps": []},
    {"do": "logged", "rank": 1, "value": 0.5, "step": 3, "weight": 1.0},
]
JUNK: list[Any] = [None, {}, EVIL, "../../x", "a\0:1", -1, 10**400, 1e999, [[]], True]
# : Almost honest messages: an endpoint too long for an environment, a number too large for a float.
CLOSE: list[Message] = [
    {"do": "ready", **PSERVER, "endpoint": "a\0:1"},
    {"do": "hello", "epoch": 0, "endpoints": {"pserver0": f"{EVIL}:1"}},
    {"do": "logged", "rank": 1, "value": 10**400, "step": 3, "weight": 1.0},
]
FRAMES: list[Any] = [
    *([], None, {"a": {}}, {"a": 1, "s": []}, {"a": 0, "s": 1e999}),
    *({"a": 0, "s": 4, "m": content} for content in (None, {"do": []}, {"do": "__class__"}, {"do": "hello" * 10**5})),
    *({"a": 10**400, "i": []}, {"a": -1, "gone": []}, {"a": float("nan")}),
    *(b"[" * 100_000, b'{"a":' * 60 + b"1" + b"}" * 60, b"9" * 5000, b"\xff", b"", b'{"a": 0, "s": 4'),
]


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Keys:
    return Keys(tmp_path_factory.mktemp("keys"))


class Run:
    """A run in progress: a lead, a node whose keys someone else has, and an honest node."""

    def __init__(self, keys: Keys) -> None:
        self.loop = EventLoop()
        more: Message = {"restarts": {"trainer": 3, "pserver": 3}, "keep_best": {"name": "auc", "direction": "max"}}
        more |= {"port": 0, "all_processes": PROCESSES, "heartbeat_s": HEARTBEAT_EVERY_S}
        self.leader = Lead(self.loop, keys, members=MEMBERS, **more)
        self.hostile, self.honest = (
            Follower(self.loop, keys.of(node), self.leader.port, members=MEMBERS, heartbeat_s=HEARTBEAT_EVERY_S)
            for node in MEMBERS[1:]
        )
        for rank, lead in enumerate((self.leader.lead, self.hostile.lead, self.honest.lead)):
            lead.send({"do": "hello", "epoch": 0, "endpoints": {}})
            if rank == 1:
                lead.send({"do": "ready", **PSERVER, "endpoint": "h:1"})
            lead.send({"do": "running", "role": "trainer", "rank": rank, "attempt": 1})
        run_until(self.loop, lambda: "running" in [note.get("phase") for note in self.leader.notes])

    def is_heard(self) -> bool:
        """Return True if the hostile node's messages have arrived or its connection has ended."""
        return self.hostile.lead._connection is None or not self.hostile.lead._channel.repeat() or self.is_stopped()

    def is_stopped(self) -> bool:
        return "stop" in self.honest.ordered()

    def goes_on(self) -> None:
        """The lead receives a failure from the honest node and acts on it, unless the run is over."""
        news = {"exit_code": 1, "stopping": False, "message": "m", "tail": [], "worked": True, "t": 1.0}
        self.honest.lead.send({"do": "exited", "role": "trainer", "rank": 2, "attempt": 1, **news})
        run_until(self.loop, lambda: {"respawn", "again", "stop"} & set(self.honest.ordered()))
        self.honest.lead.send({"do": "stop_wanted"})
        run_until(self.loop, self.is_stopped)

    def close(self) -> None:
        for follower in (self.hostile, self.honest):
            follower.lead.let_go()
            if follower.lead._connection is not None:
                follower.lead._connection.close()
        for connection in list(self.leader.lead._connections.values()):
            connection.close()
        self.leader.listener.close()


def makes_sense(order: Message) -> bool:
    """Return True if a supervisor can carry the order out: places to connect to, names of directories, numbers."""
    places = [*order.get("pservers", ()), *order.get("endpoints", {}).values()]
    tags = [*order.get("tags", ()), *(order[name] for name in ("newest",) if name in order)]
    tags += [tag for tag in (order.get("recover", {}).get("tag"),) if tag is not None]
    numbers = [*order.get("attempts", {}).values(), *order.get("ranks", ()), *order.get("recover", {}).get("left", ())]
    return (
        all(isinstance(place, str) and PLACE.fullmatch(place) for place in places)
        and all(map(is_tag, tags))
        and all(str(number).isdigit() for number in numbers)
    )


def changed() -> Iterator[Message]:
    """Yield each message with one of its fields, or part of one, missing or replaced by each junk value in turn."""
    junk = itertools.cycle(JUNK)
    for message in MESSAGES:
        for turn, (name, value) in enumerate(message.items()):
            yield {**message, name: next(junk)}
            if turn % 4 == 1:
                yield {key: value for key, value in message.items() if key != name}
            if isinstance(value, dict):
                yield {**message, name: {**value, "pserver0": next(junk)}}
                yield {**message, name: {**value, "trainer2": 1}}  # a process of the other node
            elif isinstance(value, list):
                yield {**message, name: [next(junk)]}


def outlives(keys: Keys, speak: Callable[[Run], None], what: Any) -> None:
    run = Run(keys)
    try:
        speak(run)
        run_until(run.loop, run.is_heard)
        run.goes_on()
        assert all(map(makes_sense, [*run.honest.orders, *run.leader.orders]))
    except Exception as exc:
        raise AssertionError(f"{what!r:.300}") from exc
    finally:
        run.close()


def test_the_lead_survives_every_message_of_a_node_and_sends_others_only_valid_orders(keys: Keys) -> None:
    messages = [*CLOSE, *itertools.islice(changed(), 0, None, 3)]
    assert len(messages) > 25
    for message in messages:
        outlives(keys, lambda run, message=message: run.hostile.lead.send(message), message)


def test_the_lead_survives_every_frame_of_a_node(keys: Keys) -> None:
    for frame in FRAMES:

        def speak(run: Run, frame: Any = frame) -> None:
            connection = run.hostile.lead._connection
            assert connection is not None
            connection._outgoing += frame + b"\n" if isinstance(frame, bytes) else json.dumps(frame).encode() + b"\n"
            run.hostile.lead.send({"do": "rejoin"})

        outlives(keys, speak, frame)
