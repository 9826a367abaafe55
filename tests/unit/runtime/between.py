"""A bad network between trainers and lanes: it loses, repeats, delays and reorders whole messages."""

from __future__ import annotations

import random
import threading
from collections import Counter
from typing import Any

import zmq

from clusterctl.runtime.wire import messages as wire
from unit.runtime.cluster import DEADLINE_S, ThreadCluster

# : A delayed message is released after this many others have passed, or when the network has been idle this long.
_OTHERS = 6
_IDLE_MS = 3

Frames = list[bytes]


class Between:
    """Takes the place of every lane of a cluster (without CURVE): its trainers connect to this proxy.

    `lose`, `repeat` and `delay` are the probabilities for each message in either direction, drawn from `seed`. Later
    messages overtake a delayed one. `fates` counts what happened. Streams are not offered. A context manager.
    """

    def __init__(
        self,
        cluster: ThreadCluster,
        seed: int,
        *,
        lose: float = 0.0,
        repeat: float = 0.0,
        delay: float = 0.0,
    ) -> None:
        self.fates: Counter[str] = Counter()
        self._chance = random.Random(seed)
        self._chances = (lose, repeat, delay)
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._poller = zmq.Poller()
        self._fronts: dict[Any, str] = {}
        self._backs: dict[tuple[Any, bytes], Any] = {}
        self._sources: dict[Any, tuple[Any, bytes]] = {}
        self._late: list[tuple[int, Any, Frames]] = []
        self._passed = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        addresses = []
        for pserver in cluster.pservers:
            ports = [self._stand_before(port) for port in pserver.ports]
            for lane in pserver.server.lanes:
                lane.core.greeting["ports"] = ports
            addresses.append(f"127.0.0.1:{ports[0]}")
        cluster.addresses = tuple(addresses)

    def __enter__(self) -> Between:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(DEADLINE_S)
        for front_or_back in [*self._fronts, *self._sources]:
            front_or_back.close(linger=0)
        self._context.term()
        assert not self._thread.is_alive()

    def _stand_before(self, port: int) -> int:
        front = self._context.socket(zmq.ROUTER)
        self._fronts[front] = f"tcp://127.0.0.1:{port}"
        self._poller.register(front, zmq.POLLIN)
        return int(front.bind_to_random_port("tcp://127.0.0.1"))

    def _run(self) -> None:
        while not self._over.is_set():
            ready = self._poller.poll(_IDLE_MS)
            for where, _ in ready:
                self._take(where)
            self._let_go(everything=not ready)

    def _take(self, where: Any) -> None:
        if where in self._fronts:
            frames = where.recv_multipart()
            self._meet(self._back(where, frames[0]), frames[1:])
        elif where in self._sources:
            front, route = self._sources[where]
            self._meet(front, [route, *_without_an_offer(where.recv_multipart())])

    def _back(self, front: Any, route: bytes) -> Any:
        """Return the connection to the lane that stands for one connection from a trainer."""
        if (front, route) not in self._backs:
            back = self._context.socket(zmq.DEALER)
            back.connect(self._fronts[front])
            self._backs[front, route], self._sources[back] = back, (front, route)
            self._poller.register(back, zmq.POLLIN)
        return self._backs[front, route]

    def _meet(self, to: Any, frames: Frames) -> None:
        fate = self._draw()
        self.fates[fate] += 1
        if fate == "delay":
            self._late.append((self._passed + self._chance.randint(1, _OTHERS), to, frames))
            return
        for _ in range({"lose": 0, "repeat": 2}.get(fate, 1)):
            to.send_multipart(frames)
        self._passed += 1

    def _draw(self) -> str:
        roll = self._chance.random()
        for fate, chance in zip(("lose", "repeat", "delay"), self._chances, strict=True):
            if roll < chance:
                return fate
            roll -= chance
        return "pass"

    def _let_go(self, everything: bool) -> None:
        due = [late for late in self._late if everything or late[0] <= self._passed]
        self._late = [late for late in self._late if not any(late is other for other in due)]
        self._chance.shuffle(due)
        for _, to, frames in due:
            to.send_multipart(frames)


def _without_an_offer(frames: Frames) -> Frames:
    """Return a reply; that to a hello offers no stream, which would lead around the proxy."""
    reply = wire.decode(frames, lambda table, position, size: memoryview(bytes(size)))
    facts = reply.json() if reply.parts and reply.parts[0].kind == wire.JSON else {}
    if facts.pop("stream", None) is None:
        return frames
    reply.parts[0] = wire.json_part(facts)
    return [bytes(frame) for frame in wire.encode(reply)]
