"""Wheels on the control machine: fetched once by pip for the nodes' platform, kept in a cache."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from clusterctl.common.pip import OPTIONS, Pip, lent_by
from clusterctl.common.wheels import Wheel, WheelStore, pinned
from clusterctl.errors import ConfigError, NodeError
from clusterctl.setup.platforms import Platform

NO_NETWORK = (
    "Failed to establish a new connection",
    "NewConnectionError",
    "Temporary failure in name resolution",
    "Name or service not known",
    "Network is unreachable",
    "ConnectTimeoutError",
    "Read timed out",
    "ProxyError",
    "SSLError",
    "Failed to fetch",  # uv's word
)
UNTRUSTED = ("CERTIFICATE_VERIFY_FAILED", "invalid peer certificate")
TAIL_CHARS = 400


class Downloads:
    """The cache of this machine: wheels by their hash, and what was chosen for requirements and a platform."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.store = WheelStore(self._directory / "wheels")

    def resolve(self, requirements: Sequence[str], platform: Platform, *, cached: bool) -> list[Wheel]:
        """The wheels that pip here chooses for the platform. With `cached`, those that it chose last time, if all
        are still there. Raises ConfigError for requirements that cannot be met, NodeError without a network or pip.
        """
        remembered = self._lock_path(requirements, platform)
        if cached and (known := self._read(remembered)):
            return known
        with self.store.workplace() as workplace:
            listed = Path(workplace, "requirements.txt")
            listed.write_text("\n".join(requirements) + "\n")
            _pip_download(workplace, platform, ["--requirement", str(listed)], requirements)
            lock = sorted(self.store.adopt(path) for path in Path(workplace).glob("*.whl"))
        remembered.parent.mkdir(parents=True, exist_ok=True)
        beside = remembered.with_suffix(f".{os.getpid()}")
        beside.write_text(json.dumps(lock))
        beside.replace(remembered)
        return lock

    def fetch(self, wheels: Sequence[Wheel], options: Sequence[str], platform: Platform) -> None:
        """Brings wheels of a lock into the cache; `options` are such as --index-url. Raises as `resolve` does."""
        with self.store.workplace() as workplace:
            listed = Path(workplace, "requirements.txt")
            listed.write_text("\n".join([*options, *pinned(wheels)]) + "\n")
            exact = ["--no-deps", "--require-hashes", "--requirement", str(listed)]
            _pip_download(workplace, platform, exact, options)
            for path in Path(workplace).glob("*.whl"):
                self.store.adopt(path)

    def _lock_path(self, requirements: Sequence[str], platform: Platform) -> Path:
        key = hashlib.sha256("\n".join([*requirements, *platform.tags(), *map(str, platform.kind)]).encode())
        return self._directory / "locks" / f"{key.hexdigest()[:32]}.json"

    def _read(self, path: Path) -> list[Wheel] | None:
        try:
            wheels = [Wheel(*row) for row in json.loads(path.read_text())]
        except (OSError, ValueError, TypeError):
            return None
        return wheels if wheels and all(self.store.has(wheel) for wheel in wheels) else None


def find_pip() -> Pip:
    """The pip of this machine: our interpreter's, another one's, or one that uv lends. Raises NodeError."""
    if importlib.util.find_spec("pip") is not None:
        return Pip("pip", (sys.executable, "-m", "pip"))
    found = shutil.which("pip3") or shutil.which("pip")
    if found:
        return Pip("pip", (found,))
    uv = shutil.which("uv")
    if uv is None:
        hint = f"{sys.executable} -m ensurepip gives it one; or pip or uv on a node that reaches a package index"
        raise NodeError("there is neither pip nor uv on this machine", hint=hint)
    return lent_by(uv)


def _pip_download(directory: str, platform: Platform, what: Sequence[str], requirements: Sequence[str]) -> None:
    pip = find_pip()
    target = ["--implementation", platform.kind.implementation, "--python-version", platform.kind.python]
    for tag in platform.tags():
        target += ["--platform", tag]
    command = [*pip.argv, "download", *OPTIONS, "--only-binary", ":all:", *target, "--dest", directory, *what]
    done = subprocess.run(
        command,
        env=pip.environment(requirements),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise explain(done.stdout + done.stderr, f"for {platform.kind}")


def explain(said: str, whom: str) -> ConfigError | NodeError:
    """What pip's words mean to the user."""
    errors = [line.removeprefix("ERROR: ").strip() for line in said.splitlines() if line.startswith("ERROR: ")]
    missing = [line for line in errors if line.startswith("No matching distribution found")]
    if any(word in said for word in UNTRUSTED):
        hint = "its settings (pip.conf, uv.toml, SSL_CERT_FILE) name the authority that the index's certificate is from"
        return NodeError(f"pip does not trust the certificate of the package index {whom}", hint=hint)
    if any(word in said for word in NO_NETWORK):
        hint = "pip's own settings name the index and the proxy; a new requirement needs one of them"
        return NodeError(f"pip could not reach a package index {whom}", hint=hint)
    if "No space left on device" in said:
        return NodeError(f"no space was left while pip worked {whom}", hint="free some, then run setup again")
    text = (missing or errors or [said.strip()[-TAIL_CHARS:] or "it says nothing"])[0]
    hint = "requirements.txt decides; only wheels can be fetched for another machine, sources need pip on the node"
    return ConfigError(f"pip found no packages {whom}: {text[:TAIL_CHARS]}", hint=hint)
