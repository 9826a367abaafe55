"""`python -m clusterctl` as a fork of a Python that has imported it, which is most of what a call costs.

Each call is a process of its own, with its own arguments, environment, directory, descriptors and exit code.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import inspect
import json
import os
import random
import selectors
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

#: What commands import when they need it.
LIBRARIES = ("asyncio", "fabric", "paramiko", "rich.console", "rich.live", "rich.table", "rich.text", "ssl")
#: Python reads variables with these names when it starts.
READ_AT_THE_START = ("PYTHON", "LANG", "LC_")
#: What `Popen` calls the two ends of the pipe of each standard stream.
PIPES = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
LENGTH = struct.Struct("!I")
STATUS = struct.Struct("!i")
LOCK = threading.Lock()  # tests start programs in several threads


class Call(NamedTuple):
    """What a fork is to be: its arguments, directory, environment, and if it begins a session."""

    argv: list[str]
    directory: str
    environment: dict[str, str]
    new_session: bool


class ForkedPopen(subprocess.Popen[str]):
    """A `Popen` of `python -m clusterctl ...`."""

    def _execute_child(self, *args: Any, **options: Any) -> None:
        given = inspect.signature(subprocess.Popen._execute_child).bind(self, *args, **options).arguments
        ends = [given[name] for name in PIPES if name in ("p2cread", "c2pwrite", "errwrite")]
        environment = dict(os.environ if given["env"] is None else given["env"])
        argv = [str(word) for word in given["args"][2:]]
        call = Call(argv, os.fspath(given["cwd"] or Path.cwd()), environment, bool(given["start_new_session"]))
        self._status, theirs = os.pipe()
        try:
            with LOCK:
                self.pid = _zygote().fork(call, [*ends, theirs])
        finally:
            os.close(theirs)
            self._close_pipe_fds(*(given[name] for name in PIPES))
        self._child_created = True

    def _try_wait(self, wait_flags: int) -> tuple[int, int]:
        with selectors.DefaultSelector() as selector:
            selector.register(self._status, selectors.EVENT_READ)
            if not selector.select(0 if wait_flags & os.WNOHANG else None):
                return 0, 0
        data = os.read(self._status, STATUS.size)
        os.close(self._status)
        return self.pid, STATUS.unpack(data)[0] if data else signal.SIGKILL

    def _internal_poll(self, *_: Any, **__: Any) -> int | None:
        if self.returncode is None and self._waitpid_lock.acquire(blocking=False):
            try:
                pid, status = self._try_wait(os.WNOHANG)
                if pid == self.pid:
                    self._handle_exitstatus(status)
            finally:
                self._waitpid_lock.release()
        return self.returncode


def popen(argv: Sequence[str], **options: Any) -> subprocess.Popen[str]:
    """Start a program with text streams: a fork, if nobody can tell it from the process that `Popen` starts."""
    return (ForkedPopen if _can_fork(list(argv), options) else subprocess.Popen)(argv, text=True, **options)


def run(
    argv: Sequence[str], *, timeout: float = 180, input: str | None = None, **options: Any
) -> subprocess.CompletedProcess[str]:
    """Run a program as `subprocess.run` does: without input, if there is none, and with its output captured."""
    stdin = subprocess.DEVNULL if input is None else subprocess.PIPE
    with popen(argv, stdin=stdin, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options) as process:
        try:
            out, err = process.communicate(input, timeout)
        except BaseException:
            process.kill()
            raise
    return subprocess.CompletedProcess(argv, process.returncode, out, err)


def _can_fork(argv: list[str], options: dict[str, Any]) -> bool:
    if argv[:3] != [sys.executable, "-m", "clusterctl"] or sys.platform != "linux":
        return False
    ends = [options.get(name) for name in ("stdin", "stdout", "stderr")]
    known = {"stdin", "stdout", "stderr", "cwd", "env", "errors", "start_new_session"}
    environment = os.environ if options.get("env") is None else options["env"]
    return options.keys() <= known and None not in ends and _at_the_start(environment) == _at_the_start(os.environ)


def _at_the_start(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if name.startswith(READ_AT_THE_START)}


class Zygote:
    """The Python that forks; it ends with this process."""

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", __file__, str(theirs.fileno())], pass_fds=[theirs.fileno()], cwd="/"
            )

    def fork(self, call: Call, ends: list[int]) -> int:
        """Return the pid of a process with these standard streams; its status is written to the last descriptor."""
        body = json.dumps(call).encode()
        socket.send_fds(self._socket, [LENGTH.pack(len(body))], ends)
        self._socket.sendall(body)
        return int(LENGTH.unpack(_receive(self._socket, LENGTH.size))[0])

    def end(self) -> None:
        self._socket.close()
        self._process.wait()


@cache
def _zygote() -> Zygote:
    zygote = Zygote()
    atexit.register(zygote.end)
    return zygote


def _receive(connection: socket.socket, size: int) -> bytes:
    data = connection.recv(size, socket.MSG_WAITALL)
    if len(data) < size:
        raise EOFError
    return data


def _serve(connection: socket.socket) -> Call:
    """Return in each fork, with what it is to be."""
    statuses: dict[int, int] = {}  # pid -> descriptor
    wake, waker = os.pipe()
    os.set_blocking(waker, False)
    signal.set_wakeup_fd(waker)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])  # that of a terminal is for the forks
    with selectors.DefaultSelector() as selector:
        selector.register(wake, selectors.EVENT_READ)
        selector.register(connection, selectors.EVENT_READ)
        while True:
            ready = {key.fileobj for key, _ in selector.select()}
            if wake in ready:
                os.read(wake, 4096)
                _reap(statuses)
            if connection not in ready:
                continue
            head, ends, _, _ = socket.recv_fds(connection, LENGTH.size, 4)
            if not head:
                os._exit(0)
            call = Call(*json.loads(_receive(connection, LENGTH.unpack(head)[0])))
            if pid := os.fork():
                statuses[pid] = ends.pop()
                for end in ends:
                    os.close(end)
                connection.sendall(LENGTH.pack(pid))
                continue
            break
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for target, end in enumerate(ends[:3]):
        os.dup2(end, target)
    for descriptor in (*statuses.values(), *ends, wake, waker, connection.detach()):
        os.close(descriptor)
    return call


def _reap(statuses: dict[int, int]) -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if not pid:
            return
        if (descriptor := statuses.pop(pid, None)) is not None:
            with contextlib.suppress(BrokenPipeError):  # nobody waits for it any more
                os.write(descriptor, STATUS.pack(status))
            os.close(descriptor)


def _become(call: Call) -> None:
    """Make this process what `python -m clusterctl ...` is once it has read its variables."""
    if call.new_session:
        os.setsid()
    os.chdir(call.directory)
    os.environ.clear()
    os.environ.update(call.environment)
    time.tzset()
    random.seed()
    sys.argv = call.argv
    sys.path.insert(0, call.directory)
    encoding, errors = sys.stdin.encoding, sys.stdin.errors
    sys.stdin = sys.__stdin__ = open(0, encoding=encoding, errors=errors, closefd=False)  # noqa: SIM115
    for number, name in ((1, "stdout"), (2, "stderr")):
        old = getattr(sys, name)
        stream = open(number, "w", encoding=old.encoding, errors=old.errors, closefd=False)  # noqa: SIM115
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


if __name__ == "__main__":
    import importlib
    import pkgutil

    import clusterctl.cli

    commands = [module.name for module in pkgutil.walk_packages(clusterctl.cli.__path__, "clusterctl.cli.")]
    for module in (*LIBRARIES, *commands):
        importlib.import_module(module)
    gc.freeze()  # a collection in a fork would copy the memory that it shares
    _become(_serve(socket.socket(fileno=int(sys.argv[1]))))
    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
        clusterctl.cli.main()
    except KeyboardInterrupt:  # before it could be caught, as while modules are being imported
        os._exit(130)
