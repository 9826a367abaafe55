"""Starts commands on nodes by their carriers, at most 32 at once, and ends those carriers."""

from __future__ import annotations

import contextlib
import os
import shlex
import subprocess
import threading

from clusterctl.common.process_environment import as_at_login
from clusterctl.errors import ClusterctlError, NodeError
from clusterctl.transport.carrier import failures
from clusterctl.transport.carrier.process import SOON_S, TERM_S, CarrierProcess
from clusterctl.transport.command import RemoteCommand, login_shell_argument, script_of
from clusterctl.transport.fanout import Cancellation
from clusterctl.transport.remote_process import SLICE_S, Deadline
from clusterctl.transport.target import Destination

STARTS_AT_ONCE = 32
START_S = 60.0
MOST_NOISE = 64 * 1024
BEGUN = "clusterctl: begun"
#: These lose what a command prints before they have made their streams ready. Input is passed on only after that.
HASTY = ("kubectl", "oc")
#: The variables that lead to our own login, not to the node's; with a display a carrier could still ask for a password.
OF_OUR_LOGIN = ("SSH_CONNECTION", "SSH_CLIENT", "SSH_TTY", "DISPLAY", "WAYLAND_DISPLAY")
#: Variables with which a script would give a step of srun the share of one of its tasks. Ours has all of its node.
OF_A_TASK = (
    *("SLURM_CPU", "SLURM_DISTRIBUTION", "SLURM_EXACT", "SLURM_GPU", "SLURM_GRES", "SLURM_MEM_", "SLURM_NPROCS"),
    *("SLURM_NTASKS", "SLURM_THREADS", "SLURM_TRES", "SRUN_CPU"),
)


class Carriers:
    """The carriers of one transport. Thread-safe."""

    def __init__(self, cancellation: Cancellation) -> None:
        self._cancellation = cancellation
        self._turns = threading.BoundedSemaphore(STARTS_AT_ONCE)
        self._lock = threading.Lock()
        self._live: set[CarrierProcess] = set()
        self._left: list[CarrierProcess] = []
        self._ends: list[threading.Thread] = []

    def start(self, node: Destination, command: RemoteCommand, *, what: str, stderr_limit: int) -> CarrierProcess:
        """Start a command, and return it once it has begun on the node.

        Raises UnreachableError if the carrier is not found or fails, or if the command has not begun after 60 s.
        """
        while not self._turns.acquire(timeout=SLICE_S):
            self._cancellation.check(node.label)
        try:
            process = self._spawn(node, command, what, stderr_limit)
            try:
                self._cancellation.check(node.label)
                _await_begin(process, node)
            except BaseException:
                process.close()
                raise
            return process
        finally:
            self._turns.release()

    def abort(self) -> None:
        """End every carrier that is not closed now."""
        with self._lock:
            live = list(self._live)
        for process in live:
            process.abort()

    def close(self) -> None:
        """End every carrier, and wait for them."""
        self.abort()
        deadline = Deadline(SOON_S + 2 * TERM_S)
        with self._lock:
            ends = list(self._ends)
        for thread in ends:
            thread.join(deadline.left())

    def _spawn(self, node: Destination, command: RemoteCommand, what: str, stderr_limit: int) -> CarrierProcess:
        words = carrier_argv(node, command)
        try:
            popen = subprocess.Popen(
                words,
                bufsize=0,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=_environment(node),
                start_new_session=True,  # Ctrl-C is for us, and it finds no terminal to ask for a password
                # One that outlives this program has warnings to print, and nobody to read them.
                restore_signals=not node.leaves_nothing,
            )
        except OSError as exc:
            raise failures.not_started(words[0], node.label, exc) from exc
        process = CarrierProcess(
            popen,
            carrier=node.carrier,
            host=node.ssh_host,
            label=node.label,
            where=where(node),
            what=what,
            stderr_limit=stderr_limit,
        )
        process.on_close = lambda: self._end(process)
        process.on_leave = lambda: self._leave(process)
        with self._lock:
            self._live.add(process)
        return process

    def _leave(self, process: CarrierProcess) -> None:
        with self._lock:
            self._live.discard(process)
            self._left = [one for one in self._left if not one.has_ended()]
            self._left.append(process)

    def _end(self, process: CarrierProcess) -> None:
        """Reap a closed carrier, without delaying the caller."""

        def end() -> None:
            process.end()
            with self._lock:
                self._live.discard(process)
                self._ends.remove(thread)

        thread = threading.Thread(target=end, daemon=True, name="end-of-a-carrier")
        with self._lock:
            self._ends.append(thread)
        thread.start()


def where(node: Destination) -> str:
    """Return the node's place for messages."""
    return "this machine" if node.via == "local" else f"{node.ssh_host} over {node.carrier}"


def carrier_argv(node: Destination, command: RemoteCommand) -> list[str]:
    """Return the argv of the carrier with the command: three words at its end, one after `ssh`, which joins its words.

    The command begins in the user's home, after a line of ours; over kubectl it waits for a line of input before.
    """
    ready = "read -r line || exit; " if node.carrier in HASTY else ""
    shown = f"{ready}echo {shlex.quote(BEGUN)}; cd ~ 2>/dev/null || cd /; "
    script = script_of(command, shown)
    words = [] if isinstance(node.via, str) else [word.replace("{host}", node.ssh_host) for word in node.via]
    if node.carrier == "ssh":
        return [*words, f"exec /bin/sh -c {login_shell_argument(script)}"]
    return [*words, "/bin/sh", "-c", script]


def _environment(node: Destination) -> dict[str, str]:
    """Return the environment of a carrier. The one that is no program gives a command what a login over SSH has."""
    if node.via == "local":
        return as_at_login(os.environ)
    unwanted = OF_A_TASK if node.carrier == "srun" else ()
    kept = {n: value for n, value in os.environ.items() if n not in OF_OUR_LOGIN and not n.startswith(unwanted)}
    return {**kept, "SSH_ASKPASS_REQUIRE": "never"}


def _await_begin(process: CarrierProcess, node: Destination) -> None:
    if node.carrier in HASTY:
        with contextlib.suppress(NodeError):  # it has ended, and says why
            process.write(b"\n", deadline_s=START_S)
    noise, deadline, begun = b"", Deadline(START_S), BEGUN.encode()
    while len(noise) < MOST_NOISE:
        try:
            line = process.readline(deadline_s=deadline.left())
        except ClusterctlError as exc:
            if exc.details.get("reason") != "deadline":
                raise
            raise failures.too_slow(process.ending(), node.label, START_S, noise + process.unread()) from exc
        if line.endswith(begun + b"\n"):  # whatever is in front of it had no line end
            return
        if line.rstrip().endswith(begun) and line.endswith(b"\n"):
            raise failures.on_a_terminal(node.carrier, node.label)
        noise += line
        if not line:
            process.end()
            break
    raise failures.before_it_began(process.ending(), node.label, noise)
