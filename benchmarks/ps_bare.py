"""The reference of the parameter server's benchmarks: processes that only send messages to and fro by pyzmq.

A server sends every message back; one whose first frame is an 8-byte number gets that many bytes instead; with
`barrier` it answers all clients once each of them has sent. A client's step sends `count` messages of `bytes` to every
server, at most `window` on their way to each, and waits for all replies. Nothing is copied that pyzmq need not copy.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import numpy as np
import zmq

from ps_common import Stopwatch, tell


def serve(given: dict[str, Any]) -> None:
    context = zmq.Context(io_threads=given.get("io_threads", 1))
    router = open_socket(context, zmq.ROUTER)
    if given["secret"]:
        router.setsockopt(zmq.CURVE_SERVER, 1)
        router.setsockopt(zmq.CURVE_SECRETKEY, given["secret"].encode())
    tell(address=f"tcp://127.0.0.1:{router.bind_to_random_port('tcp://127.0.0.1')}")
    waiting: list[Any] = []
    everyone = given["trainers"] if given.get("barrier") else 1
    answers: dict[int, Any] = {}
    while True:
        frames = router.recv_multipart(copy=False)
        if len(frames) == 3:
            size = int.from_bytes(frames[1].buffer, "little")
            frames = [frames[0], answers.setdefault(size, memoryview(bytes(size)))]
        waiting.append(frames)
        if len(waiting) == everyone:
            for answer in waiting:
                router.send_multipart(answer, copy=False)
            waiting.clear()


def train(given: dict[str, Any]) -> None:
    context = zmq.Context(io_threads=given.get("io_threads", 1))
    sockets = [connect(context, address, given["public"]) for address in given["addresses"]]
    size, count = given["bytes"], given["count"]
    data = np.ones(len(sockets) * count * size, np.uint8).data  # all of it: one message again and again stays in cache
    head = [given["reply"].to_bytes(8, "little")] if "reply" in given else []
    messages = [[*head, data[at : at + size]] for at in range(0, len(data), size)]
    shares = [messages[n * count : (n + 1) * count] for n in range(len(sockets))]
    watch = Stopwatch()
    watch.tick()
    while True:
        exchange(sockets, shares, given.get("window") or count)
        watch.tick()


def exchange(sockets: list[zmq.Socket[bytes]], shares: list[list[list[Any]]], window: int) -> None:
    """Sends each server its messages and takes the replies in turn, each of which lets the next one go."""
    for number in range(min(window, len(shares[0]))):
        for each, share in zip(sockets, shares, strict=True):
            each.send_multipart(share[number], copy=False)
    for number in range(window, window + len(shares[0])):
        for each, share in zip(sockets, shares, strict=True):
            each.recv(copy=False)
            if number < len(share):
                each.send_multipart(share[number], copy=False)


def connect(context: zmq.Context[zmq.Socket[bytes]], address: str, server_key: str) -> zmq.Socket[bytes]:
    dealer = open_socket(context, zmq.DEALER)
    if server_key:
        public, secret = zmq.curve_keypair()
        dealer.setsockopt(zmq.CURVE_PUBLICKEY, public)
        dealer.setsockopt(zmq.CURVE_SECRETKEY, secret)
        dealer.setsockopt(zmq.CURVE_SERVERKEY, server_key.encode())
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
