"""The CURVE keys of this node's processes. Those that start anew get new ones: a process that others have given up has
keys that nobody accepts.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from typing import Any

from clusterctl.common.curve_keys import peer_keys, public_key, z85
from clusterctl.common.files import read_json, write_atomic
from clusterctl.common.paths import RunPaths


class ProcessKeys:
    """The key files of a run on this node, one for each process."""

    def __init__(self, run: RunPaths) -> None:
        self._run = run

    def known(self, names: Iterable[str]) -> dict[str, str]:
        """Return the public keys of those processes that have any."""
        files = {name: self._read(name) for name in names}
        return {name: file["public"] for name, file in files.items() if file}

    def renew(self, names: Iterable[str]) -> None:
        """Make new keys for processes. Raises OSError."""
        for name in names:
            secret = os.urandom(32)
            self._write(name, {"public": z85(public_key(secret)), "secret": z85(secret)})

    def complete(self, name: str, publics: Mapping[str, str]) -> None:
        """Write the keys of all processes that one may talk to into its file. Raises OSError."""
        own = self._read(name)
        if own is not None:
            self._write(name, {"public": own["public"], "secret": own["secret"], **peer_keys(name, publics)})

    def _read(self, name: str) -> dict[str, Any] | None:
        file: dict[str, Any] | None = read_json(self._run.process_keys(name))
        return file

    def _write(self, name: str, content: Mapping[str, Any]) -> None:
        write_atomic(self._run.process_keys(name), json.dumps(content).encode(), durable=False)
