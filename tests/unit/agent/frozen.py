"""A connection that may freeze: a process between a control machine and an agent, which a test stops and continues.

While it is stopped, neither end sees the end of a file or a broken pipe.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from clusterctl.inventory import Node
from clusterctl.transport import RemoteCommand, quote
from support.processes import descendants, is_alive, wait_until
from unit.agent.nodes import LocalTransport, Pipes

# Forwards both ways; exits as the command does.
CARRIER = """
import os, subprocess, sys, threading
command = subprocess.Popen(sys.argv[1:], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

def forward(source, target):
    try:
        while data := os.read(source, 65536):
            while data:
                data = data[os.write(target, data):]
    except OSError:
        pass
    os.close(target)

def take_input():
    forward(0, command.stdin.fileno())

threading.Thread(target=take_input, daemon=True).start()
forward(command.stdout.fileno(), 1)
os._exit(command.wait())
"""


class Carrier(Pipes):
    """A started command behind a process that may be stopped."""

    def command(self) -> int:
        """Return the pid of the command once it runs."""
        pids: list[int] = []

        def runs() -> bool:
            pids[:] = descendants(self.popen.pid)
            return bool(pids)

        assert wait_until(runs)
        return pids[0]

    def freeze(self) -> None:
        os.kill(self.popen.pid, signal.SIGSTOP)

    def thaw(self) -> int:
        """Continue; return the exit code of the command, which has ended."""
        os.kill(self.popen.pid, signal.SIGCONT)
        self.stdout.read()
        return self.popen.wait(30)

    def close(self) -> None:
        if self.popen.poll() is None:
            os.kill(self.popen.pid, signal.SIGCONT)
        super().close()


class CarrierTransport(LocalTransport):
    """Starts every command behind a carrier of its own; the newest is the last of `carriers`."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.carriers: list[Carrier] = []

    def open(self, node: Node, command: RemoteCommand) -> Pipes:
        argv = [sys.executable, "-I", "-S", "-c", CARRIER, "sh", "-c", quote(command)]
        self.carriers.append(Carrier(argv, self.home(node)))
        return self.carriers[-1]


def assert_ends(carrier: Carrier, pid: int) -> None:
    """Wait until the command behind a frozen carrier has ended; it exits 1, by itself."""
    assert wait_until(lambda: not is_alive(pid)), "the agent goes on"
    assert carrier.thaw() == 1
