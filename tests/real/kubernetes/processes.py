"""A pod as local processes: its containers have a home of their own, and commands run beside them."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any

from real.kubernetes.websocket import WebSocket
from support.processes import kill_all, processes_with_environment

MARK = "STAND_IN_POD"
GRACE_S = 10
CHUNK_BYTES = 32 * 1024
STDIN, STDOUT, STDERR, STATUS, CLOSED = 0, 1, 2, 3, 255


class PodProcesses:
    """The processes of a pod, as `spec` has them, with its volumes in the directories `volumes`, by name.

    There is no other root directory: what a container mounts is replaced by its directory wherever its command or its
    environment names it.
    """

    def __init__(self, uid: str, spec: Mapping[str, Any], volumes: Mapping[str, Path]) -> None:
        self.uid = uid
        self._spec = spec
        self._volumes = volumes
        self._main: list[subprocess.Popen[bytes]] = []

    @property
    def containers(self) -> list[str]:
        return [one["name"] for one in self._spec["containers"]]

    def begin(self) -> None:
        """Run the init containers to their end, then start the others."""
        for container in self._spec.get("initContainers", ()):
            argv, environment = self._command(container), self._environment(container)
            subprocess.run(argv, env=environment, check=True, cwd="/", timeout=60)
        self._begin_containers()

    def _begin_containers(self) -> None:
        for container in self._spec["containers"]:
            argv, environment = self._command(container), self._environment(container)
            self._main.append(subprocess.Popen(argv, env=environment, cwd="/", start_new_session=True))

    def restart(self) -> None:
        """End all processes, then start the containers again: with the same volumes, and without init containers."""
        self.end()
        self._main.clear()
        self._begin_containers()

    def open(self, container: str, argv: list[str]) -> subprocess.Popen[bytes]:
        """Start a command in a container, with three pipes."""
        (spec,) = (one for one in self._spec["containers"] if one["name"] == container)
        pipe, environment = subprocess.PIPE, self._environment(spec)
        return subprocess.Popen(
            argv, bufsize=0, stdin=pipe, stdout=pipe, stderr=pipe, env=environment, cwd="/", start_new_session=True
        )

    def end(self) -> None:
        """Send TERM to the containers' commands. When they have ended, the kernel kills all others."""
        for process in self._main:
            process.terminate()
        for process in self._main:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(GRACE_S)
            process.kill()
            process.wait()
        while left := processes_with_environment(MARK, self.uid):
            kill_all(one.pid for one in left)

    def _command(self, container: Mapping[str, Any]) -> list[str]:
        return [self._local(container, word) for word in container["command"]]

    def _environment(self, container: Mapping[str, Any]) -> dict[str, str]:
        given = {one["name"]: self._local(container, one["value"]) for one in container.get("env", ())}
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"  # python3 is one with numpy and pyzmq
        return {"PATH": path, "LANG": "C.UTF-8", **given, MARK: self.uid}

    def _local(self, container: Mapping[str, Any], text: str) -> str:
        for mount in container.get("volumeMounts", ()):
            text = text.replace(mount["mountPath"], str(self._volumes[mount["name"]] / mount.get("subPath", "")))
        return text


def serve(socket: WebSocket, process: subprocess.Popen[bytes], cut_after: int | None) -> None:
    """Connect a command to a client, by the protocol v5.channel.k8s.io, and reap it.

    A client that leaves ends the command's input, and nothing else. After `cut_after` bytes of its output, the
    connection ends as if all was well, without its exit code, while the command goes on.
    """
    threads = [
        threading.Thread(target=_pass_on, args=(socket, process.stdout, STDOUT, cut_after), daemon=True),
        threading.Thread(target=_pass_on, args=(socket, process.stderr, STDERR, None), daemon=True),
    ]
    threading.Thread(target=_take_input, args=(socket, process.stdin), daemon=True).start()
    for thread in threads:
        thread.start()
    code = process.wait()
    for thread, pipe in zip(threads, (process.stdout, process.stderr), strict=True):
        thread.join(GRACE_S)  # a process that the command left may keep its output open
        if not thread.is_alive() and pipe is not None:
            pipe.close()
    with contextlib.suppress(OSError):
        socket.send(bytes([STATUS]) + json.dumps(_status(code)).encode())
        socket.close()


def _pass_on(socket: WebSocket, pipe: IO[bytes], channel: int, cut_after: int | None) -> None:
    sent = 0
    send: Callable[[bytes], None] | None = socket.send
    while piece := os.read(pipe.fileno(), CHUNK_BYTES):
        with contextlib.suppress(OSError):
            if send is None:
                continue
            rest = piece if cut_after is None else piece[: cut_after - sent]
            send(bytes([channel]) + rest)
            sent += len(rest)
            if sent == cut_after:
                send = None
                socket.close()


def _take_input(socket: WebSocket, pipe: IO[bytes]) -> None:
    with contextlib.suppress(OSError), pipe:
        while (message := socket.receive()) and message[0] != CLOSED:
            if message[0] == STDIN:
                _write(pipe, message[1:])
    with contextlib.suppress(OSError):  # the client is gone
        while socket.receive() is not None:  # it answers pings
            pass


def _write(pipe: IO[bytes], data: bytes) -> None:
    while data:
        data = data[os.write(pipe.fileno(), data) :]


def _status(code: int) -> dict[str, Any]:
    if code == 0:
        return {"metadata": {}, "status": "Success"}
    shown = code if code > 0 else 128 - code
    return {
        "metadata": {},
        "status": "Failure",
        "reason": "NonZeroExitCode",
        "message": f"command terminated with non-zero exit code: exit status {shown}",
        "details": {"causes": [{"reason": "ExitCode", "message": str(shown)}]},
    }
