"""Ask `nvidia-smi` for the GPUs of this node and the processes on them, and parse what it prints.

It may be absent, fail, print values such as `[N/A]`, or hang in the kernel, where not even KILL ends it. So it is
looked for in PATH only, has a time limit, and is not waited for beyond that. What it prints is limited and checked.
"""

from __future__ import annotations

import contextlib
import os
import re
import selectors
import shutil
import signal
import subprocess
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

NAME = "nvidia-smi"
LIMIT_S = 5.0
KILLED_S = 0.2
MOST_BYTES = 256 << 10  # of one answer
MOST_GPUS = 64
MOST_INSTANCES = 16  # of a GPU
MOST_USERS = 256
MOST_CHARS = 80  # of a name
NO_DEVICES = 6  # the exit code for "No devices were found"
WARNED = 14  # of a damaged infoROM; the answer is complete
MIB = 1 << 20
FORMAT = "--format=csv,noheader,nounits"
LIST = ("-L",)
GPUS = ("--query-gpu=index,uuid,memory.total,memory.used,utilization.gpu,name", FORMAT)
USERS = ("--query-compute-apps=gpu_uuid,pid,used_memory", FORMAT)
# Patterns are compiled when they are first used: most nodes have no GPU.
UUID = r"(?:GPU|MIG)-[\w/-]{1,76}"
LISTED = r"GPU ([0-9]{1,4}): .*\(UUID: (GPU-[\w-]{1,76})\)"
LISTED_MIG = r"\s+MIG .*\(UUID: (MIG-[\w/-]{1,76})\)"
UNPRINTABLE = r"[^ -~]+"


class SmiOutput(NamedTuple):
    """The exit code, None if it did not end in time, and the output."""

    code: int | None
    text: str


class Gpu(NamedTuple):
    """A GPU: its index, sizes in bytes, `utilization` in percent; None where the driver does not report them."""

    number: int
    uuid: str
    name: str
    total: int | None
    used: int | None
    utilization: int | None

    def to_json(self) -> dict[str, Any]:
        values = self._asdict()
        return {"index": values.pop("number"), **values}


class User(NamedTuple):
    """A process that uses the GPU with this UUID, and the bytes of memory that it has there."""

    uuid: str
    pid: int
    memory: int | None


class Devices(NamedTuple):
    """The devices as CUDA_VISIBLE_DEVICES names them, and the UUIDs of their GPUs.

    The names are indices, or UUIDs if a GPU is divided into MIG instances: then each instance is a device.
    """

    names: tuple[str, ...]
    uuids: tuple[str, ...]


class GpuReading(NamedTuple):
    """The devices; the GPUs, by index; and the processes that use them."""

    devices: Devices
    gpus: list[Gpu]
    users: list[User]


class NvidiaSmiError(Exception):
    """It failed: the message says how."""


def find_program() -> str | None:
    return shutil.which(NAME)


def list_devices(program: str) -> Devices:
    """Return the devices of this node. Raises NvidiaSmiError."""
    return _devices(*_ask(program, [LIST]))


def read(program: str) -> GpuReading:
    """Return all of it. Raises NvidiaSmiError. A driver that cannot name the processes names none."""
    listed, gpus, users = _ask(program, [LIST, GPUS, USERS])
    by_uuid = {gpu.uuid: gpu for gpu in map(_gpu, _lines(gpus)) if gpu}
    known = [user for user in map(_user, _lines(users)) if user] if users.code in (0, WARNED) else []
    return GpuReading(_devices(listed), sorted(by_uuid.values())[:MOST_GPUS], known[:MOST_USERS])


def _devices(listed: SmiOutput) -> Devices:
    gpus: list[tuple[str, str, list[str]]] = []
    for line in _lines(listed):
        if (found := re.match(LISTED, line)) and len(gpus) < MOST_GPUS:
            gpus.append((found[1], found[2], []))
        elif (found := re.match(LISTED_MIG, line)) and gpus and len(gpus[-1][2]) < MOST_INSTANCES:
            gpus[-1][2].append(found[1])
    uuids = tuple(uuid for _, uuid, _ in gpus)
    if not any(instances for _, _, instances in gpus):
        return Devices(tuple(index for index, _, _ in gpus), uuids)
    return Devices(tuple(device for _, uuid, instances in gpus for device in instances or [uuid]), uuids)


def _gpu(line: str) -> Gpu | None:
    """The name is the last field, as it could contain a comma."""
    index, uuid, total, used, utilization, name = ([*map(str.strip, line.split(",", 5))] + [""] * 6)[:6]
    if not re.fullmatch(r"[0-9]{1,4}", index) or not re.fullmatch(UUID, uuid) or not name:
        return None
    return Gpu(int(index), uuid, _clean(name), _bytes(total), _bytes(used), _number(utilization))


def _user(line: str) -> User | None:
    uuid, pid, memory = ([*map(str.strip, line.split(","))] + [""] * 3)[:3]
    number = _number(pid)
    if not re.fullmatch(UUID, uuid) or not number:
        return None
    return User(uuid, number, _bytes(memory))


def _number(text: str) -> int | None:
    """Return None for `[N/A]`, `[Not Supported]`, `[Insufficient Permissions]`, `[Unknown Error]` and the like."""
    return int(text) if re.fullmatch(r"[0-9]{1,9}", text) else None


def _bytes(mebibytes: str) -> int | None:
    number = _number(mebibytes)
    return None if number is None else number * MIB


def _clean(text: str) -> str:
    return re.sub(UNPRINTABLE, "?", text).strip()[:MOST_CHARS]


def _lines(answer: SmiOutput) -> list[str]:
    """Return the lines of a good answer. Raises NvidiaSmiError for another one."""
    if answer.code is None:
        raise NvidiaSmiError(f"{NAME} did not answer within {LIMIT_S:.0f} s")
    if answer.code == NO_DEVICES:
        return []
    if answer.code not in (0, WARNED):
        said = next((line for line in answer.text.splitlines() if line.strip()), "")
        raise NvidiaSmiError(f"{NAME} exited with code {answer.code}" + (f": {_said(said)}" if said else ""))
    return answer.text.splitlines()


def _said(line: str) -> str:
    text = re.sub(UNPRINTABLE, "?", line).strip()
    return text if len(text) <= 2 * MOST_CHARS else text[: 2 * MOST_CHARS] + "..."


def _ask(program: str, commands: Sequence[Sequence[str]]) -> list[SmiOutput]:
    """Run it with each of these arguments, at the same time."""
    deadline = time.monotonic() + LIMIT_S
    with contextlib.ExitStack() as stack, selectors.DefaultSelector() as selector:
        try:
            running = [stack.enter_context(_SmiProcess(program, arguments)) for arguments in commands]
        except OSError as exc:
            raise NvidiaSmiError(f"cannot run {program}: {exc.strerror}") from exc
        for one in running:
            selector.register(one.output, selectors.EVENT_READ, one)
        while selector.get_map() and (left := deadline - time.monotonic()) > 0:
            for key, _ in selector.select(left):
                if not key.data.read():
                    selector.unregister(key.fileobj)
                    key.data.output.close()
        return [one.answer(deadline) for one in running]


class _SmiProcess:
    """One run of it, in a session of its own. Raises OSError if it cannot be started."""

    def __init__(self, program: str, arguments: Sequence[str]) -> None:
        self._process = subprocess.Popen(
            [program, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        assert self._process.stdout is not None
        self.output = self._process.stdout
        self._text = b""

    def __enter__(self) -> _SmiProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.output.close()

    def read(self) -> bool:
        """Read a piece of its output. Return False at the end, and when it is too much."""
        data = os.read(self.output.fileno(), 1 << 16)
        self._text += data
        return bool(data) and len(self._text) < MOST_BYTES

    def answer(self, deadline: float) -> SmiOutput:
        """Return its answer. At the deadline kill it, and leave it: a driver may keep it in the kernel for ever."""
        code = None
        try:
            code = self._process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            with contextlib.suppress(OSError):
                os.killpg(self._process.pid, signal.SIGKILL)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(KILLED_S)
        return SmiOutput(code, self._text.decode(errors="replace"))
