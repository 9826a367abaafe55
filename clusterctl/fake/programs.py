"""Programs that a fake cluster runs: our own long-running ones, and external tools."""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from clusterctl.common.paths import PACKAGE_ROOT
from clusterctl.common.procfs import Identity, end_all, identify, is_alive
from clusterctl.errors import ClusterctlError
from clusterctl.fake.layout import FakePaths, FakeState
from clusterctl.fake.processes import NODES_GRACE_S, cut_power, marks, on_cluster

SYSTEM_PATH = "/usr/sbin:/usr/local/sbin:/sbin"  # not in every user's PATH
LOG_TAIL_BYTES = 2000
END_S = 10.0
KEEPER_READY_S = 30.0


def find_program(name: str) -> str | None:
    """Return the path of a program, searching the system directories too."""
    return shutil.which(name) or shutil.which(name, path=SYSTEM_PATH)


def call(
    argv: Sequence[str], *, more: Mapping[str, str] | None = None, deadline_s: float = 60.0
) -> subprocess.CompletedProcess[str]:
    """Run a program to completion, with `more` added to its environment. Raises ClusterctlError on a timeout."""
    try:
        return subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            env={**os.environ, **(more or {})},
            timeout=deadline_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise ClusterctlError(f"`{' '.join(argv)}` did not end within {deadline_s:.0f} s") from None


def variable(name: str, default: str) -> str:
    """Return an environment variable of ours, which `call` passes on, or the default."""
    return os.environ.get(name) or default


def make_key(path: Path, comment: str) -> None:
    """Create a private key at `path`, with its public half next to it."""
    done = call(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", comment, "-f", str(path)])
    if done.returncode:
        raise ClusterctlError(f"ssh-keygen failed: {done.stderr.strip()}")


def stay(module: str, layout: FakePaths, request: Mapping[str, object], *, lifeline: bool) -> subprocess.Popen[bytes]:
    """Start `main` of one of our modules as a long-running process, in its own session and without our terminal.

    The request is the first line of its standard input. With `lifeline`, that input stays open until this process ends.
    """
    search = os.pathsep.join(filter(None, (PACKAGE_ROOT, os.environ.get("PYTHONPATH"))))
    with layout.log.open("ab") as log:
        program = subprocess.Popen(
            [sys.executable, "-c", f"from {module} import main; main()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            cwd="/",
            env={**os.environ, "PYTHONPATH": search, **marks(layout.directory)},
            start_new_session=True,
        )
    assert program.stdin is not None
    with contextlib.suppress(BrokenPipeError):
        program.stdin.write(json.dumps(request).encode() + b"\n")
        program.stdin.flush()
    if not lifeline:
        with contextlib.suppress(BrokenPipeError):
            program.stdin.close()
    return program


def await_ready(program: subprocess.Popen[bytes], layout: FakePaths, deadline_s: float) -> None:
    """Wait for the program to report that it is ready. Raises ClusterctlError with the reason if it does not."""
    assert program.stdout is not None
    with program.stdout as answers:
        ready, _, _ = select.select([answers], [], [], deadline_s)
        line = answers.readline() if ready else b""
    answer = json.loads(line) if line else {}
    if answer.get("ready"):
        return
    tail = layout.log.read_text(errors="replace")[-LOG_TAIL_BYTES:].strip()
    reason = answer.get("error") or (tail.splitlines() or ["no answer in time"])[-1]
    raise ClusterctlError(f"the fake cluster did not start: {reason}", details={"log": tail})


# Programs that this process started, by the cluster's directory, so that they are reaped and keep their lifelines.
_HELD: dict[Path, list[subprocess.Popen[bytes]]] = {}


def hold(layout: FakePaths, program: subprocess.Popen[bytes]) -> None:
    """Keep a program until `release`, so that it is reaped and its lifeline stays open."""
    _HELD.setdefault(layout.directory, []).append(program)


def start_keeper(layout: FakePaths, *, remove: bool) -> Identity | None:
    """Start the keeper, with a lifeline from this process. With `remove`, it also removes the cluster's files."""
    request = {"directory": str(layout.directory), "remove": remove}
    keeper = stay("clusterctl.fake.keeper", layout, request, lifeline=True)
    hold(layout, keeper)
    await_ready(keeper, layout, KEEPER_READY_S)
    return identify(keeper.pid)


def end_keeper(state: FakeState | None) -> None:
    """End the keeper, if there is one and it is not this process."""
    keeper = state.server if state is not None else None
    if keeper is not None and keeper.pid != os.getpid():
        cut_power(lambda: [keeper] if is_alive(keeper) else [])


def end_everything(layout: FakePaths) -> int:
    """End all processes of the cluster and return their number. Raises ClusterctlError if some survive."""
    ended, _, survivors = end_all(lambda: on_cluster(layout.directory), NODES_GRACE_S)
    release(layout)
    if survivors:
        raise ClusterctlError(f"{survivors} processes of the fake cluster in {layout.directory} survived KILL")
    return ended


def release(layout: FakePaths) -> None:
    """Reap the programs held for a cluster, which have ended by now, and close their lifelines."""
    for program in _HELD.pop(layout.directory, []):
        program.wait(END_S)
        if program.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                program.stdin.close()
