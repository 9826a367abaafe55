"""A user-space Ethernet switch between network namespaces that can lose, delay and slow down frames.

`python switch.py SEED` reads JSON lines and answers `ok` to each: `{"plug": [name, pid, address, mac]}` puts a TAP
device into the network namespace of a process, `{"unplug": name}` removes it; `{"rules": {...}}` replaces all rules,
each for frames in one direction, `"source>target"`: `{"loss": 0.05, "delay_s": 0.01, "bytes_per_s": 1e6}`. A loss
of 1 is a cut. Every random choice comes from the seed.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import heapq
import itertools
import json
import os
import random
import select
import struct
import subprocess
import sys
import time
from dataclasses import dataclass, field
from typing import Any

TUNSETIFF, TAP_WITHOUT_HEADER = 0x400454CA, 0x1002
NEW_NETWORK = 0x40000000
DEVICE, MTU = "eth0", 9000
FRAMES_PER_TURN = 64
LONGEST_QUEUE_S = 0.5  # of a slow link; frames that would wait longer are dropped, as by a real queue


def enter_network(process: int | str) -> None:
    """Move the calling thread into the network namespace of a process, or into one at a path."""
    where = os.open(f"/proc/{process}/ns/net" if isinstance(process, int) else process, os.O_RDONLY)
    try:
        if ctypes.CDLL(None, use_errno=True).setns(where, NEW_NETWORK):
            raise OSError(ctypes.get_errno(), f"setns to {process}")
    finally:
        os.close(where)


def open_tap(pid: int, address: str, mac: str) -> int:
    """Create a device in the network namespace of a process, bring it up with an address, and return its descriptor."""
    home = os.open("/proc/self/ns/net", os.O_RDONLY)
    enter_network(pid)
    try:
        tap = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
        fcntl.ioctl(tap, TUNSETIFF, struct.pack("16sH22x", DEVICE.encode(), TAP_WITHOUT_HEADER))
        for command in (
            f"link set {DEVICE} address {mac} mtu {MTU}",
            f"link set {DEVICE} up",
            "link set lo up",
            f"addr add {address}/24 dev {DEVICE}",
        ):
            subprocess.run(["ip", *command.split()], check=True)
    finally:
        enter_network(f"/proc/self/fd/{home}")
        os.close(home)
    return tap


@dataclass
class Port:
    tap: int
    name: str
    mac: bytes


@dataclass
class Switch:
    chance: random.Random
    ports: dict[int, Port] = field(default_factory=dict)
    rules: dict[str, dict[str, float]] = field(default_factory=dict)
    queue: list[tuple[float, int, int, bytes]] = field(default_factory=list)
    numbers: itertools.count[int] = field(default_factory=itertools.count)
    busy_until: dict[str, float] = field(default_factory=dict)

    def plug(self, name: str, pid: int, address: str, mac: str) -> None:
        self.unplug(name)
        tap = open_tap(pid, address, mac)
        self.ports[tap] = Port(tap, name, bytes.fromhex(mac.replace(":", "")))

    def unplug(self, name: str) -> None:
        for port in [port for port in self.ports.values() if port.name == name]:
            del self.ports[port.tap]
            os.close(port.tap)

    def read(self, tap: int) -> None:
        """Read frames from a port and forward each by the rules."""
        for _ in range(FRAMES_PER_TURN):
            try:
                frame = os.read(tap, MTU + 100)
            except BlockingIOError:
                return
            except OSError:  # its namespace is gone
                self.unplug(self.ports[tap].name)
                return
            source = self.ports[tap].name
            for target in self.ports.values():
                if target.tap != tap and (frame[0] & 1 or target.mac == frame[:6]):
                    self.carry(source, target, frame)

    def carry(self, source: str, target: Port, frame: bytes) -> None:
        link = f"{source}>{target.name}"
        rule = self.rules.get(link)
        if rule is None:
            self.write(target.tap, frame)
            return
        if rule.get("loss") and self.chance.random() < rule["loss"]:
            return
        now = time.monotonic()
        at = now
        if rule.get("bytes_per_s"):
            at = max(now, self.busy_until.get(link, 0.0)) + len(frame) / rule["bytes_per_s"]
            if at - now > LONGEST_QUEUE_S:
                return
            self.busy_until[link] = at
        heapq.heappush(self.queue, (at + rule.get("delay_s", 0.0), next(self.numbers), target.tap, frame))

    def write(self, tap: int, frame: bytes) -> None:
        with contextlib.suppress(OSError):  # its queue is full or the port is gone: drop the frame
            os.write(tap, frame)

    def deliver(self) -> float | None:
        """Write all frames that are due; return the seconds until the next one."""
        while self.queue:
            rest_s = self.queue[0][0] - time.monotonic()
            if rest_s > 0:
                return rest_s
            _, _, tap, frame = heapq.heappop(self.queue)
            self.write(tap, frame)
        return None

    def obey(self, order: dict[str, Any]) -> None:
        if "plug" in order:
            self.plug(*order["plug"])
        if "unplug" in order:
            self.unplug(order["unplug"])
        self.rules = order.get("rules", self.rules)


def main(seed: str) -> None:
    switch = Switch(random.Random(seed))
    while True:
        ready, _, _ = select.select([0, *switch.ports], [], [], switch.deliver())
        for descriptor in ready:
            if descriptor in switch.ports:
                switch.read(descriptor)
        if 0 in ready:
            line = sys.stdin.buffer.readline()
            if not line:
                return
            switch.obey(json.loads(line))
            sys.stdout.write("ok\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1])
