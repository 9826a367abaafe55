"""Wheels on the control machine: downloaded once by pip for the nodes' platform, and cached."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from clusterctl.common.errors import AgentError
from clusterctl.common.pip import EXACT, OPTIONS, Pip, fetch_all, lent_by
from clusterctl.common.safe_json import parse
from clusterctl.common.wheels import Wheel, WheelStore, pinned
from clusterctl.errors import ConfigError, NodeError, RefusedError
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
    "Failed to fetch",  # uv
)
OTHER_HASH = "DO NOT MATCH THE HASHES"
UNTRUSTED = ("CERTIFICATE_VERIFY_FAILED", "invalid peer certificate")
TAIL_CHARS = 400


class Downloads:
    """The cache of this machine: wheels by hash, and the wheels chosen for given requirements and a platform."""

    def __init__(self, directory: Path) -> None:
        """Raises ConfigError if the cache is another account's, see `private_cache`."""
        if directory.is_relative_to(os.devnull):
            hint = "set XDG_CACHE_HOME to a directory of your own"
            raise ConfigError("the wheels need a cache, and that of HOME belongs to another account", hint=hint)
        self._directory = directory
        self.store = WheelStore(self._directory / "wheels")

    def resolve(
        self, requirements: Sequence[str], platform: Platform, *, cached: bool, exact: bool = False
    ) -> list[Wheel]:
        """Let pip on this machine choose the wheels for the platform.

        With `cached`, returns the wheels chosen last time, if all of them are still there. With `exact`, all
        requirements have hashes, and nothing else is needed. Raises ConfigError for requirements that cannot be met,
        NodeError without a network or pip.
        """
        lock_path = self._lock_path(requirements, platform)
        if cached and (known := self._read(lock_path)):
            return known
        with self.store.workplace() as workplace:
            listed = Path(workplace, "requirements.txt")
            listed.write_text("\n".join(requirements) + "\n")
            arguments = [*(EXACT if exact else ()), "--requirement", str(listed)]
            _pip_download(workplace, platform, arguments, requirements)
            lock = sorted(self.store.adopt(path) for path in Path(workplace).glob("*.whl"))
        lock_path.parent.mkdir(parents=True, exist_ok=True)
        temporary = lock_path.with_suffix(f".{os.getpid()}")
        temporary.write_text(json.dumps(lock))
        temporary.replace(lock_path)
        return lock

    def fetch(
        self, wheels: Sequence[Wheel], options: Sequence[str], platform: Platform, urls: Mapping[str, str]
    ) -> None:
        """Download wheels of a lock into the cache, from their `urls`, by sha256, else with pip.

        `options` are for pip, such as --index-url. Raises as `resolve`; RefusedError for a file with another hash.
        """
        try:
            fetch_all(wheels, urls, self.store)
        except AgentError as exc:
            raise RefusedError(str(exc), hint=exc.hint) from exc
        left = [wheel for wheel in wheels if not self.store.has(wheel)]
        if not left:
            return
        with self.store.workplace() as workplace:
            listed = Path(workplace, "requirements.txt")
            listed.write_text("\n".join([*options, *pinned(left)]) + "\n")
            _pip_download(workplace, platform, [*EXACT, "--requirement", str(listed)], options)
            for path in Path(workplace).glob("*.whl"):
                self.store.adopt(path)

    def _lock_path(self, requirements: Sequence[str], platform: Platform) -> Path:
        key = hashlib.sha256("\n".join([*requirements, *platform.tags(), *map(str, platform.kind)]).encode())
        return self._directory / "locks" / f"{key.hexdigest()[:32]}.json"

    def _read(self, path: Path) -> list[Wheel] | None:
        try:
            wheels = [Wheel(*row) for row in parse(path.read_bytes())]
        except (OSError, ValueError, TypeError):
            return None
        return wheels if wheels and all(self.store.has(wheel) for wheel in wheels) else None


def find_pip() -> Pip:
    """Return the pip of this machine: our interpreter's, another one in PATH, or uv's. Raises NodeError."""
    if importlib.util.find_spec("pip") is not None:
        return Pip("pip", (sys.executable, "-m", "pip"))
    pip = shutil.which("pip3") or shutil.which("pip")
    if pip:
        return Pip("pip", (pip,))
    uv = shutil.which("uv")
    if uv is None:
        hint = f"run {sys.executable} -m ensurepip, or install pip or uv on a node that can reach a package index"
        raise NodeError("found neither pip nor uv on this machine", hint=hint)
    return lent_by(uv)


def _pip_download(directory: str, platform: Platform, arguments: Sequence[str], requirements: Sequence[str]) -> None:
    pip = find_pip()
    target = ["--implementation", platform.kind.implementation, "--python-version", platform.kind.python]
    for tag in platform.tags():
        target += ["--platform", tag]
    command = [*pip.argv, "download", *OPTIONS, "--only-binary", ":all:", *target, "--dest", directory, *arguments]
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


def explain(output: str, scope: str) -> ConfigError | NodeError | RefusedError:
    """Return the error for a failed pip, from its output. `scope` ends the message: `on node0`, `for python 3.11`."""
    errors = [line.removeprefix("ERROR: ").strip() for line in output.splitlines() if line.startswith("ERROR: ")]
    missing = [line for line in errors if line.startswith("No matching distribution found")]
    if any(text in output for text in UNTRUSTED):
        hint = "add the issuer of that certificate to pip's or uv's settings (pip.conf, uv.toml, SSL_CERT_FILE)"
        return NodeError(f"pip does not trust the certificate of the package index {scope}", hint=hint)
    if any(text in output for text in NO_NETWORK):
        hint = "set the index or the proxy in pip's own configuration; new requirements cannot be installed without one"
        return NodeError(f"pip could not reach a package index {scope}", hint=hint)
    if OTHER_HASH in output:
        named = re.search(r"^\s+(\S+.*?) from (\S+)", output.partition(OTHER_HASH)[2], re.MULTILINE)
        what = f"{named[1]} from {named[2].partition('#')[0]}" if named else "a package"
        hint = "lock the project again if the package index has replaced it; otherwise do not trust that index"
        return RefusedError(f"{what} does not match its hash {scope}", hint=hint)
    if "No space left on device" in output:
        return NodeError(f"no space left on device while pip ran {scope}", hint="free some space, then run setup again")
    text = (missing or errors or [output.strip()[-TAIL_CHARS:] or "no output"])[0]
    hint = "check requirements.txt; only wheels can be fetched for another machine, sources need pip on the node"
    return ConfigError(f"pip found no packages {scope}: {text[:TAIL_CHARS]}", hint=hint)
