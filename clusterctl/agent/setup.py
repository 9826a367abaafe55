"""Setup, the node's side: what is here, wheels in, an environment out; one SSH command.

After `{"facts": ...}` the control machine gives orders: `resolve` (pip here chooses and fetches wheels), `offer` (a
lock; the answer says which wheels are missing), `give` and `take` (a wheel's bytes), and last `build` or `keep`.
"""

from __future__ import annotations

import fcntl
import os
import platform
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from clusterctl.agent.paths import META
from clusterctl.agent.processes import wait_until
from clusterctl.agent.protocol import AgentError, Gone, Peer
from clusterctl.agent.venvs import Venvs
from clusterctl.agent.wheels import COPY_BYTES, Wheel, WheelStore, decode_lock, pinned

LOCK_S = 0.5
ORDER_S = 3600.0  # wheels are being found, built or sent elsewhere meanwhile
PIP_LOOK_S = 0.2
PIP = ("-m", "pip", "--disable-pip-version-check", "--no-input", "--no-color")


def setup(root: Path, request: dict[str, Any], peer: Peer) -> dict[str, Any]:
    venvs = Venvs(root)
    store = WheelStore(root / META / "wheels")
    venvs.directory.mkdir(0o700, exist_ok=True)
    with _alone(venvs.lock):
        venvs.sweep()
        store.sweep()
        found = venvs.find(request["requirements"])
        peer.send({"facts": {**facts(), "environment": found, "lock": venvs.read_lock(found) if found else None}})
        while True:
            order = peer.receive(ORDER_S)
            if order["do"] == "keep":
                return {"environment": found, "built": False}
            if order["do"] == "build":
                name, built = venvs.build(decode_lock(order["lock"]), store)
                venvs.point(request["requirements"], name)
                return {"environment": name, "built": built}
            _serve(order, store, peer)


def _serve(order: dict[str, Any], store: WheelStore, peer: Peer) -> None:
    if order["do"] == "resolve":
        peer.send(_resolve(order["requirements"], store, peer))
        return
    lock = decode_lock(order["lock"])
    if order["do"] == "offer":
        if order["online"] and has_pip():
            missing = [wheel for wheel in lock if not store.has(wheel)]
            _download(missing, order["options"], store, peer)
        peer.send({"missing": [i for i, wheel in enumerate(lock) if not store.has(wheel)]})
    elif order["do"] == "give":
        for wheel in lock:
            _give(store.path(wheel), peer)
    elif order["do"] == "take":
        for wheel in lock:
            store.take(wheel, peer.incoming.read1)  # type: ignore[attr-defined]
    else:
        raise AgentError(f"setup does not know {order['do']!r}", kind="usage")


@contextmanager
def _alone(lock: Path) -> Iterator[None]:
    """Holds the lock of this node's environments, which dies with its holder."""
    fd = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def take() -> bool:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        return True

    try:
        if not wait_until(take, LOCK_S):
            holder = os.pread(fd, 200, 0).decode(errors="replace") or "unknown"
            hint = "wait until it is done; hosts that share a ROOT_DIR need one each: Host(root_dir=...)"
            raise AgentError(f"another setup is at work on this node (pid {holder})", kind="refused", hint=hint)
        os.ftruncate(fd, 0)
        os.pwrite(fd, str(os.getpid()).encode(), 0)
        yield
    finally:
        os.close(fd)


def facts() -> dict[str, Any]:
    """This interpreter and machine, as far as wheels depend on them."""
    return {
        "implementation": {"cpython": "cp", "pypy": "pp"}.get(sys.implementation.name, sys.implementation.name),
        "python": platform.python_version(),
        "machine": platform.machine(),
        "glibc": _glibc(),
        "pip": has_pip(),
    }


def _glibc() -> list[int] | None:
    """[2, 36]; None for another C library."""
    try:
        text = os.confstr("CS_GNU_LIBC_VERSION") or ""
        return [int(part) for part in text.split()[1].split(".")[:2]]
    except (ValueError, OSError, IndexError):
        return None


def has_pip() -> bool:
    """Whether this interpreter has pip. The agent itself runs without site-packages, so another process looks."""
    code = "import sys, importlib.util as u; sys.exit(u.find_spec('pip') is None)"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd="/", stdin=subprocess.DEVNULL, capture_output=True, check=False)
    return done.returncode == 0


def _resolve(requirements: Sequence[str], store: WheelStore, peer: Peer) -> dict[str, Any]:
    """pip chooses versions for this very python, downloads wheels, and builds those that there are not."""
    with store.workplace() as workplace:
        listed = Path(workplace, "requirements.txt")
        listed.write_text("\n".join(requirements) + "\n")
        wheels = Path(workplace, "wheels")
        wheels.mkdir()
        failed = _run_pip(["wheel", "--wheel-dir", str(wheels), "--requirement", str(listed)], peer)
        if failed:
            return {"failed": failed}
        return {"lock": sorted(store.adopt(path) for path in wheels.glob("*.whl"))}


def _download(missing: Sequence[Wheel], options: Sequence[str], store: WheelStore, peer: Peer) -> None:
    """By pip, what the index has with the very hash; what it has not is missing still."""
    if not missing:
        return
    with store.workplace() as workplace:
        listed = Path(workplace, "requirements.txt")
        listed.write_text("\n".join([*options, *pinned(missing)]) + "\n")
        exact = ["--no-deps", "--only-binary", ":all:", "--require-hashes", "--requirement", str(listed)]
        _run_pip(["download", "--dest", workplace, *exact], peer)
        for path in Path(workplace).glob("*.whl"):
            store.adopt(path)


def _run_pip(arguments: Sequence[str], peer: Peer) -> str | None:
    """Runs pip, and ends it when the control machine goes away. Returns what it says when it fails."""
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen(
            [sys.executable, *PIP, *arguments],
            cwd="/",  # -m puts it on the path
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=said,
            start_new_session=True,
        )
        try:
            while not _has_ended(process):
                if select.select([peer.incoming], [], [], 0)[0]:  # nothing is sent meanwhile: this is its end
                    raise Gone
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        said.seek(0)
        return None if process.returncode == 0 else said.read().decode(errors="replace")[-20_000:]


def _has_ended(process: subprocess.Popen[bytes]) -> bool:
    try:
        process.wait(PIP_LOOK_S)
    except subprocess.TimeoutExpired:
        return False
    return True


def _give(path: Path, peer: Peer) -> None:
    with path.open("rb") as f:
        while data := f.read(COPY_BYTES):
            peer.send_bytes(data)
