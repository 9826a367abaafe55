"""Pservers under attack: a trainer that records its requests, a good one, and one that sends anything."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import zmq

from clusterctl.runtime.stream.client import open_stream
from clusterctl.runtime.stream.framed import Stream
from clusterctl.runtime.wire import messages as wire
from unit.runtime.cluster import RUN, Process, is_ready, make_job
from unit.runtime.hostile import Frames

DEADLINE_S = 60
# A trainer that records every request it sends. It exits before its pass ends: the end of a job is not wanted here.
RECORDED = """
import json, os
import numpy as np
from clusterctl.runtime import SGD, Adagrad, connect
from clusterctl.runtime.wire import messages as wire

log, encode = open("recorded.jsonl", "w"), wire.encode

def tap(message, *args, **kwargs):
    frames = encode(message, *args, **kwargs)
    log.write(json.dumps([bytes(frame).hex() for frame in frames]) + "\\n")
    return frames

wire.encode = tap
with connect() as ps:
    w = ps.dense("theirs.w", shape=(3, 50), rule=SGD(0.5))
    long = ps.dense("theirs.long", shape=70_000, rule=SGD(0.5))  # its gradient comes in a piece of its own
    e = ps.embedding("theirs.e", dim=4, rule=Adagrad(0.1), rows=1000)
    u = ps.embedding("theirs.u", dim=4, rule=Adagrad(0.1))
    for n in ps.steps(lambda pass_, rng: range(100), passes=1):
        ids = (np.arange(40) * (n + 3)) % 1000
        rows = e.pull(ids)
        u.pull(-ids)
        grads = {w: np.full((3, 50), n, "f4"), e: (ids, rows), u: (-ids, rows)}
        ps.push({**grads, long: np.ones(70_000, "f4")} if n % 3 == 1 else grads, samples=n % 3 + 1)
        if n == 9:
            log.close()
            os._exit(0)
"""
LEAVES = """
from clusterctl.runtime import connect
with connect():
    pass
"""
# A well-behaved trainer: waits for a line before each step, and prints the digest of the values it then holds.
GOOD = """
import hashlib
import numpy as np
from clusterctl.runtime import SGD, Adagrad, connect

with connect() as ps, open("go") as go:
    w = ps.dense("good.w", shape=(7, 11), rule=SGD(0.3))
    e = ps.embedding("good.e", dim=3, rule=Adagrad(0.2))
    for n in ps.steps(lambda pass_, rng: range(10**6), passes=1):
        if not go.readline():
            break
        ids = np.arange(20) * n - 100
        ps.push({w: w.pull() * np.float32(0.5) + n, e: (ids, e.pull(ids))}, samples=1)
        print("=" + hashlib.sha256(w.pull().tobytes() + e.pull(ids).tobytes()).hexdigest(), flush=True)
"""


@contextlib.contextmanager
def pserver(root: Path, **spec: Any) -> Iterator[tuple[Process, tuple[str, ...]]]:
    """A pserver process for two trainers, and its address."""
    make_job(root, 1, 2, key_cache=True, **spec)
    server = Process(root, "pserver", 0, ["-m", "clusterctl.runtime.pserver"], ())
    try:
        yield server, (f"127.0.0.1:{server.until('ready')['ports'][0]}",)
    finally:
        server.reap()


def run_trainer(root: Path, rank: int, script: str, addresses: tuple[str, ...]) -> None:
    trainer = Process(root, "trainer", rank, [script], addresses)
    try:
        status, out, err = trainer.wait()
        assert status == 0, (out, err)
    finally:
        trainer.reap()


class GoodTrainer:
    """Trainer 0, which makes a step on request and must hold what it would hold if it were alone, bit for bit."""

    def __init__(self, root: Path, addresses: tuple[str, ...]) -> None:
        (root / "good.py").write_text(GOOD)
        os.mkfifo(root / "go")
        self._trainer = Process(root, "trainer", 0, ["good.py"], addresses)
        self._go = (root / "go").open("w", buffering=1)
        self.steps = 0
        self._alone = Alone(root)

    def step(self) -> None:
        self._go.write("\n")
        assert digest(self._trainer.process) == self._alone.step(), f"step {self.steps} has other bits"
        self.steps += 1

    def close(self) -> None:
        self._go.close()
        self._alone.close()
        self._trainer.reap()


class Alone:
    """The same program in local mode, as the oracle."""

    def __init__(self, root: Path) -> None:
        here = root / "alone"
        here.mkdir()
        os.mkfifo(here / "go")
        environ = {name: value for name, value in os.environ.items() if not name.startswith("CLUSTERCTL_")}
        argv = [sys.executable, str(root / "good.py")]
        self._process = subprocess.Popen(
            argv, cwd=here, env={**environ, "CLUSTERCTL_SEED": "7"}, stdout=subprocess.PIPE, text=True
        )
        self._go = (here / "go").open("w", buffering=1)

    def step(self) -> str:
        self._go.write("\n")
        return digest(self._process)

    def close(self) -> None:
        self._go.close()
        self._process.kill()
        self._process.communicate()


def digest(process: subprocess.Popen[str]) -> str:
    for line in process.stdout or ():
        if line.startswith("="):
            return str(line)
    raise AssertionError(f"a trainer ended: {process.communicate()}")


class Attacker:
    """A DEALER with trainer 1's key; `burst` sends messages and returns when the pserver has handled all of them.

    With `over_stream` all but a first hello goes over a stream.
    """

    def __init__(self, root: Path, server: Process, address: str, secure: bool, over_stream: bool = False) -> None:
        self._server, self._secure = server, secure
        self._context = zmq.Context()
        self.socket = self._context.socket(zmq.DEALER)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.setsockopt(zmq.SNDTIMEO, DEADLINE_S * 1000)
        self.replies = 0
        if secure:
            path = root / ".clusterctl" / "runs" / RUN / "keys" / "trainer-1.json"
            keys = json.loads(path.read_text())
            self.socket.setsockopt(zmq.CURVE_PUBLICKEY, keys["public"].encode())
            self.socket.setsockopt(zmq.CURVE_SECRETKEY, keys["secret"].encode())
            self.socket.setsockopt(zmq.CURVE_SERVERKEY, keys["servers"][0].encode())
        self.address = address
        self.socket.connect(f"tcp://{address}")
        self._asked = 2**62
        self.stream: Stream | None = None
        if over_stream:
            self.reopen()

    def offer(self) -> dict[str, Any]:
        """Return the offer of a stream in the reply to a hello."""
        hello = self.ask(wire.encode(wire.Message(wire.HELLO, 1, 2**60, parts=[wire.json_part({"trainers": 2})])))
        assert hello is not None
        return dict(hello.json()["stream"])

    def reopen(self) -> Stream:
        """Open another stream, over which all goes from now on."""
        self.stream = None
        self.stream = self._open_stream()
        return self.stream

    def _open_stream(self) -> Stream:
        opening = open_stream(self.offer(), self.address.split(":")[0], 1, 0, 0.0, secure=self._secure)
        assert opening is not None
        while True:
            assert is_ready(opening, to_write=not opening.is_connected)
            stream = opening.advance(1.0)
            if stream is not None:
                return stream

    def _send(self, frames: Frames) -> None:
        if self.stream is None:
            self.socket.send_multipart(frames)
            return
        self.stream.send(frames)
        while self.stream.is_queued:
            assert is_ready(self.stream, to_write=True)
            self.stream.flush()

    def send_bytes(self, data: bytes) -> None:
        """Send bytes that are no message over the stream."""
        assert self.stream is not None
        pieces = [data]
        while not self.stream._write(pieces):
            assert is_ready(self.stream, to_write=True)

    def _receive(self) -> list[Any]:
        while self.stream is not None:
            frames = self.stream.receive(0)
            if frames is not None:
                return frames
            assert self._server.process.poll() is None, self._server.process.communicate()
        while not self.socket.poll(1000):
            assert self._server.process.poll() is None, self._server.process.communicate()
        return self.socket.recv_multipart()

    def ask(self, frames: Frames) -> wire.Message | None:
        """Return the pserver's answer to a single message; None if it sends nothing."""
        self._send(frames)
        answers = self._answers()
        assert len(answers) < 2
        return answers[0] if answers else None

    def burst(self, messages: list[Frames]) -> None:
        for frames in messages:
            self._send(frames or [b""])
        self.replies += len(self._answers())

    def _answers(self) -> list[wire.Message]:
        """Return all answers up to that to a probe, which the pserver handles after everything sent before."""
        self._asked += 1
        self._send(wire.encode(wire.Message(wire.PROBE, 1, self._asked)))
        answers: list[wire.Message] = []
        while True:
            answers.append(wire.decode(self._receive()))
            if answers[-1].request == self._asked:
                return answers[:-1]

    def close(self) -> None:
        if self.stream is not None:
            self.stream.close()
        self._context.destroy(linger=0)


def resident(process: Process) -> int:
    """Return the peak resident memory of a process so far, in bytes."""
    status = Path(f"/proc/{process.process.pid}/status").read_text()
    [line] = [line for line in status.splitlines() if line.startswith("VmHWM:")]
    return int(line.split()[1]) * 1024


@contextlib.contextmanager
def under_attack(
    root: Path, mode: str, security: str, left: bool = False, carrier: str = "zmq"
) -> Iterator[tuple[Process, GoodTrainer, Attacker]]:
    """A pserver, trainer 0, and an attacker with trainer 1's key; trainer 1 has `left` or has not joined yet.

    `carrier` is what the attacker uses: `zmq`, `unix`, `tcp` without keys, or `sealed` with keys.
    """
    with contextlib.ExitStack() as stack:
        shm = {"shm": "off"} if carrier in ("tcp", "sealed") else {}
        server, addresses = stack.enter_context(pserver(root, mode=mode, security=security, **shm))
        if left:
            (root / "leaves.py").write_text(LEAVES)
            run_trainer(root, 1, "leaves.py", addresses)
        good = stack.enter_context(contextlib.closing(GoodTrainer(root, addresses)))
        attacker = Attacker(root, server, addresses[0], security == "curve", carrier != "zmq")
        yield server, good, stack.enter_context(contextlib.closing(attacker))


def record(root: Path) -> list[Frames]:
    """Return the requests of trainer 1 of 2 in async mode."""
    with pserver(root, mode="async", shm="off") as (server, addresses):
        (root / "train.py").write_text(RECORDED)
        run_trainer(root, 1, "train.py", addresses)
        assert server.process.poll() is None
    lines = (root / "recorded.jsonl").read_text().splitlines()
    recording = [[bytes.fromhex(frame) for frame in json.loads(line)] for line in lines]
    assert len(recording) > 20
    assert all(wire.decode(frames).rank == 1 for frames in recording)
    return recording
