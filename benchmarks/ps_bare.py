"""The reference for the parameter server's benchmarks: processes that only exchange messages over pyzmq.

A server returns every message. If the first frame is an 8-byte number, it returns that many bytes instead. With
`model`, the number is that of a part, which the server updates and returns. With `barrier`, it answers all clients once
each of them has sent. A client's step sends `count` messages of `bytes` to every server, with at most `window` in
flight to each, and waits for all replies. Nothing is copied unless pyzmq requires it.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import zmq

from ps_common import Stopwatch, report

Answer = Callable[[int, memoryview], Any]


def serve(given: dict[str, Any]) -> None:
    context = zmq.Context(io_threads=given.get("io_threads", 1))
    router = open_socket(context, zmq.ROUTER)
    if given["secret"]:
        router.setsockopt(zmq.CURVE_SERVER, 1)
        router.setsockopt(zmq.CURVE_SECRETKEY, given["secret"].encode())
    report(address=f"tcp://127.0.0.1:{router.bind_to_random_port('tcp://127.0.0.1')}")
    waiting: list[list[Any]] = []
    everyone = given["trainers"] if given.get("barrier") else 1
    reply: Answer = Model(given["count"], given["bytes"]).update if given.get("model") else Store().fetch
    while True:
        frames: list[Any] = router.recv_multipart(copy=False)
        if len(frames) == 3:
            frames = [frames[0], reply(int.from_bytes(frames[1].buffer, "little"), frames[2].buffer)]
        waiting.append(frames)
        if len(waiting) == everyone:
            for answer in waiting:
                router.send_multipart(answer, copy=False)
            waiting.clear()


class Store:
    """Answers with the requested number of bytes."""

    def __init__(self) -> None:
        self._answers: dict[int, memoryview] = {}

    def fetch(self, size: int, payload: memoryview) -> memoryview:
        return self._answers.setdefault(size, memoryview(bytes(size)))


class Model:
    """A minimal parameter server: computes `w -= rate * gradient` for the numbered part and returns the new part."""

    def __init__(self, count: int, size: int) -> None:
        self._parts = np.zeros((count, size // 4), np.float32)
        self._scratch = np.empty(size // 4, np.float32)

    def update(self, number: int, payload: memoryview) -> Any:
        part = self._parts[number]
        np.multiply(np.frombuffer(payload, np.float32), np.float32(2.0**-20), out=self._scratch)
        np.subtract(part, self._scratch, out=part)
        return part.view(np.uint8).data


def train(given: dict[str, Any]) -> None:
    context = zmq.Context(io_threads=given.get("io_threads", 1))
    sockets = [connect(context, address, given["public"]) for address in given["addresses"]]
    size, count = given["bytes"], given["count"]
    # Allocate all bytes: a single message sent repeatedly would stay in the cache.
    data = np.ones(len(sockets) * count * size // 4, np.float32).view(np.uint8).data
    own = np.zeros(len(data), np.uint8) if given.get("model") else None
    messages = [[*head(given, n % count), data[n * size : (n + 1) * size]] for n in range(len(sockets) * count)]
    shares = [messages[n * count : (n + 1) * count] for n in range(len(sockets))]
    places = [own[n * count * size : (n + 1) * count * size] if own is not None else None for n in range(len(sockets))]
    watch = Stopwatch()
    watch.tick()
    while True:
        exchange(sockets, shares, places, given.get("window") or count)
        watch.tick()


def head(given: dict[str, Any], number: int) -> list[bytes]:
    """Return the frames before the bytes: the number of bytes to answer with, or the number of the model's part."""
    if given.get("model"):
        return [number.to_bytes(8, "little")]
    return [given["reply"].to_bytes(8, "little")] if "reply" in given else []


def exchange(sockets: list[zmq.Socket[bytes]], shares: list[list[list[Any]]], places: list[Any], window: int) -> None:
    """Send each server its messages and receive the replies in turn. Each reply allows the next message.

    If there are places, the replies are copied there, one after another.
    """
    for number in range(min(window, len(shares[0]))):
        for each, share in zip(sockets, shares, strict=True):
            each.send_multipart(share[number], copy=False)
    for number in range(window, window + len(shares[0])):
        for each, share, place in zip(sockets, shares, places, strict=True):
            frame = each.recv(copy=False)
            if place is not None:
                at = (number - window) * len(frame)
                place[at : at + len(frame)] = np.frombuffer(frame.buffer, np.uint8)
            if number < len(share):
                each.send_multipart(share[number], copy=False)


def connect(context: zmq.Context[zmq.Socket[bytes]], address: str, server_key: str) -> zmq.Socket[bytes]:
    dealer = open_socket(context, zmq.DEALER)
    if server_key:
        public, secret = zmq.curve_keypair()
        dealer.setsockopt(zmq.CURVE_PUBLICKEY, public)
        dealer.setsockopt(zmq.CURVE_SECRETKEY, secret)
        dealer.setsockopt(zmq.CURVE_SERVERKEY, server_key.encode())
    dealer.setsockopt(zmq.RCVTIMEO, 60_000)  # in case the server has ended
    dealer.connect(address)
    return dealer


def open_socket(context: zmq.Context[zmq.Socket[bytes]], kind: int) -> zmq.Socket[bytes]:
    opened = context.socket(kind)
    opened.setsockopt(zmq.SNDHWM, 0)
    opened.setsockopt(zmq.RCVHWM, 0)
    return opened


if __name__ == "__main__":
    try:
        {"server": serve, "client": train}[sys.argv[1]](json.loads(sys.argv[2]))
    except KeyboardInterrupt:
        os._exit(130)
