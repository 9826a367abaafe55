"""The keys of one run: created here, delivered over SSH, deleted with the run.

TLS between supervisors: one authority per run and one certificate per node. CURVE between trainers and pservers: one
key pair per process, and for every pserver the list of public keys that it accepts.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from clusterctl.launch.plan import LaunchPlan

KeyFiles = dict[int, dict[str, str]]


def make_keys(launch: LaunchPlan) -> KeyFiles:
    """Return the files of each node's `keys/` directory: name to text. Secrets; never log them."""
    nodes = [node.id for node in launch.nodes]
    files = _tls_files(nodes)
    if launch.needs_runtime and launch.settings.ps_security == "curve":
        for process, name, content in _curve_files(launch):
            files[process][name] = content
    return files


def _curve_files(launch: LaunchPlan) -> Iterable[tuple[int, str, str]]:
    import zmq

    pairs: dict[tuple[str, int], tuple[str, str]] = {}
    for process in launch.processes:
        pair = zmq.curve_keypair()
        pairs[process.role, process.rank] = (pair[0].decode(), pair[1].decode())
    servers = [pairs[key][0] for key in sorted(pairs) if key[0] == "pserver"]
    allowed = {public: f"trainer-{rank}" for (role, rank), (public, _) in pairs.items() if role == "trainer"}
    for process in launch.processes:
        public, secret = pairs[process.role, process.rank]
        others: dict[str, Any] = {"allow": allowed} if process.role == "pserver" else {"servers": servers}
        content = json.dumps({"public": public, "secret": secret, **others})
        yield process.node, f"{process.role}-{process.rank}.json", content


def _tls_files(nodes: Iterable[int]) -> KeyFiles:
    from clusterctl.certificates import Authority

    authority = Authority()
    return {node: {"tls.pem": authority.issue(f"node{node}"), "ca.pem": authority.trusted} for node in nodes}
