"""Machines of their own on one network for benchmarks: network namespaces, a bridge, and links of a given rate.

Needs root. A namespace exists as long as its first process, which dies with this program, so nothing is left behind,
even after kill -9. Nothing has a name in the host system, and nothing reaches the outside.
"""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass

NETWORK = "10.78.0"
DEVICE = "eth0"
#: What a shaped link sends at once, and how long a packet may wait for its turn: long enough that none is dropped.
BURST, LATENCY = "32kb", "4s"


class Namespace:
    """A network namespace, kept alive by a process that waits."""

    def __init__(self) -> None:
        stay = ["unshare", "--net", "sh", "-c", "echo up; exec sleep infinity"]
        self._keeper = subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", "--", *stay], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE
        )
        assert self._keeper.stdout is not None
        if self._keeper.stdout.readline() != b"up\n":
            self.close()
            raise SystemExit("no network namespaces: run this as root")

    @property
    def pid(self) -> int:
        return self._keeper.pid

    def inside(self) -> list[str]:
        """Return the prefix of a command that is to run in it."""
        return ["nsenter", "-t", str(self.pid), "-n", "--"]

    def run(self, command: str) -> None:
        subprocess.run([*self.inside(), *command.split()], check=True)

    def close(self) -> None:
        self._keeper.kill()
        self._keeper.wait()
        if self._keeper.stdout is not None:
            self._keeper.stdout.close()


@dataclass(frozen=True)
class Network:
    """`nodes` machines, each with the device eth0, connected by a switch."""

    switch: Namespace
    nodes: list[Namespace]

    def address(self, node: int) -> str:
        return f"{NETWORK}.{11 + node}"

    def shape(self, mbit_per_s: int | None) -> None:
        """Give each machine this rate in each direction by a token bucket filter; None: no limit."""
        for number, node in enumerate(self.nodes):
            for place, device in ((node, DEVICE), (self.switch, f"port{number}")):
                if mbit_per_s is None:
                    with contextlib.suppress(subprocess.CalledProcessError):  # it had no limit
                        subprocess.run(
                            [*place.inside(), *f"tc qdisc del dev {device} root".split()],
                            check=True,
                            stderr=subprocess.DEVNULL,
                        )
                else:
                    rate = f"tbf rate {mbit_per_s}mbit burst {BURST} latency {LATENCY}"
                    place.run(f"tc qdisc replace dev {device} root {rate}")

    def sent_bytes(self, node: int) -> int:
        """Return the bytes that a machine has sent over its link so far, with all headers."""
        return self._counters(node)[8]

    def received_bytes(self, node: int) -> int:
        """Return the bytes that a machine has received over its link so far, with all headers."""
        return self._counters(node)[0]

    def _counters(self, node: int) -> list[int]:
        command = [*self.nodes[node].inside(), "cat", "/proc/net/dev"]
        lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
        (fields,) = (line.partition(":")[2].split() for line in lines if line.strip().startswith(f"{DEVICE}:"))
        return list(map(int, fields))


@contextlib.contextmanager
def network(count: int) -> Iterator[Network]:
    with contextlib.ExitStack() as stack:

        def namespace() -> Namespace:
            made = Namespace()
            stack.callback(made.close)
            return made

        made = Network(namespace(), [namespace() for _ in range(count)])
        made.switch.run("ip link add bridge0 type bridge")
        made.switch.run("ip link set bridge0 up")
        for number, node in enumerate(made.nodes):
            port = f"port{number}"
            made.switch.run(f"ip link add {port} type veth peer name {DEVICE} netns {node.pid}")
            made.switch.run(f"ip link set {port} master bridge0 up")
            node.run("ip link set lo up")
            node.run(f"ip addr add {made.address(number)}/24 dev {DEVICE}")
            node.run(f"ip link set {DEVICE} up")
        yield made
