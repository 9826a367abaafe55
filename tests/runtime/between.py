"""A bad network between trainers and lanes: it loses, repeats, delays and reorders whole messages."""

from __future__ import annotations

import contextlib
import random
import secrets
import socket
import threading
from collections import Counter
from typing import Any

import pytest
import zmq

from clusterctl.runtime.pserver.lanes import Lane
from clusterctl.runtime.stream.carrier import LaneCarriers
from clusterctl.runtime.stream.framed import Stream
from clusterctl.runtime.stream.sealed import SealedStream
from clusterctl.runtime.stream.tokens import ANSWER_BYTES, GREETING_BYTES, SEALED
from clusterctl.runtime.wire import messages as wire
from tests.runtime.cluster import DEADLINE_S, ThreadCluster, is_ready

# : A delayed message is released after this many others have passed, or when the network has been idle this long.
_OTHERS = 6
_IDLE_MS = 3

Frames = list[bytes]


class Between:
    """Takes the place of every lane of a cluster (without CURVE): its trainers connect to this proxy.

    `lose`, `repeat` and `delay` are the probabilities for each message in either direction, drawn from `seed`. Later
    messages overtake a delayed one. `fates` counts what happened, `carried` the messages of streams. A context manager.

    `streams` is "unix" or "sealed" if it also stands between the ends of streams of this kind; otherwise it hides the
    offers of them. Sealed ones are those of a run with keys, which this proxy has stolen.
    """

    def __init__(
        self,
        cluster: ThreadCluster,
        seed: int,
        *,
        lose: float = 0.0,
        repeat: float = 0.0,
        delay: float = 0.0,
        streams: str = "",
    ) -> None:
        self.fates: Counter[str] = Counter()
        self.carried = 0
        self._streams = streams
        self._listeners: dict[int, tuple[socket.socket, dict[str, Any]]] = {}
        self._ends: dict[int, tuple[Stream, Stream]] = {}
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
        self._patch = pytest.MonkeyPatch()
        addresses = []
        for pserver in cluster.pservers:
            ports = [self._stand_before(port) for port in pserver.ports]
            for lane in pserver.server.lanes:
                lane.core.greeting["ports"] = ports
                if streams == "sealed":
                    self._seal(lane)
            addresses.append(f"127.0.0.1:{ports[0]}")
        cluster.addresses = tuple(addresses)

    def _seal(self, lane: Lane) -> None:
        server: Any = lane._streams
        server._sealed = True
        server._offer.update(sealed=SEALED, lane=lane.core.state.lane)

    def __enter__(self) -> Between:
        self._patch.setattr(LaneCarriers, "secure", self._streams == "sealed")
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(DEADLINE_S)
        for front_or_back in [*self._fronts, *self._sources]:
            front_or_back.close(linger=0)
        for listener, _ in self._listeners.values():
            listener.close()
        for end, _ in self._ends.values():
            end.close()
        self._context.term()
        self._patch.undo()
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
        """Take what has come at a socket of ZeroMQ, a listener for streams, or an end of a stream."""
        if where in self._listeners:
            self._join(*self._listeners[where])
        elif where in self._ends:
            self._take_from(*self._ends[where])
        elif where in self._fronts:
            frames = where.recv_multipart()
            self._meet(self._back(where, frames[0]), frames[1:])
        elif where in self._sources:
            front, route = self._sources[where]
            self._meet(front, [route, *self._with_our_offer(where.recv_multipart())])

    def _with_our_offer(self, frames: Frames) -> Frames:
        """Return a reply; that to a hello offers a stream to this proxy, or none."""
        reply = wire.decode(frames, lambda table, position, size: memoryview(bytes(size)))
        facts = reply.json() if reply.parts and reply.parts[0].kind == wire.JSON else {}
        offer = facts.pop("stream", None)
        if offer is None:
            return frames
        if self._streams:
            listener, facts["stream"] = self._listen(offer["token"])
            self._listeners[listener.fileno()] = listener, offer
            self._poller.register(listener.fileno(), zmq.POLLIN)
        reply.parts[0] = wire.json_part(facts)
        return [bytes(frame) for frame in wire.encode(reply)]

    def _listen(self, token: str) -> tuple[socket.socket, dict[str, Any]]:
        """Return a listener for one stream, and the offer of it."""
        if self._streams == "sealed":
            listener = socket.create_server(("127.0.0.1", 0))
            return listener, {"port": listener.getsockname()[1], "sealed": SEALED, "token": token}
        name = f"between-{secrets.token_hex(8)}"
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.bind(f"\0{name}")
        listener.listen()
        return listener, {"name": name, "token": token}

    def _join(self, listener: socket.socket, offer: dict[str, Any]) -> None:
        """Connect a trainer that opens a stream with its lane."""
        trainer, _ = listener.accept()
        if self._streams == "sealed":
            lane = socket.create_connection(("127.0.0.1", offer["port"]))
        else:
            lane = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            lane.connect(f"\0{offer['name']}")
        greeting = trainer.recv(GREETING_BYTES, socket.MSG_WAITALL)
        lane.sendall(greeting)
        trainer.sendall(lane.recv(ANSWER_BYTES, socket.MSG_WAITALL))
        ends: tuple[Stream, Stream] = Stream(trainer, 0), Stream(lane, 0)
        if self._streams == "sealed":
            about = int.from_bytes(greeting[8:12], "little"), offer["lane"], bytes.fromhex(offer["token"])
            ends = SealedStream(trainer, *about, is_lane=True), SealedStream(lane, *about, is_lane=False)
        for one, other in (ends, ends[::-1]):
            self._ends[one.fileno()] = one, other
            self._poller.register(one.fileno(), zmq.POLLIN)

    def _take_from(self, end: Stream, other: Stream) -> None:
        try:
            frames = end.receive()
            while frames is not None:
                self.carried += 1
                self._meet(other, [bytes(frame) for frame in frames])
                frames = end.receive() if end.is_buffered else None
        except OSError:  # one end has closed it
            for gone in (end, other):
                self._poller.unregister(gone.fileno())
                del self._ends[gone.fileno()]
                gone.close()

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
            _send(to, frames)
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
            _send(to, frames)


def _send(to: Any, frames: Frames) -> None:
    """Send over ZeroMQ or a stream, which may be closed by now."""
    if isinstance(to, Stream):
        with contextlib.suppress(OSError):
            to.send(frames)
            while to.is_queued:
                is_ready(to, to_write=True)
                to.flush()
    else:
        to.send_multipart(frames)
