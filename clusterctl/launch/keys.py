"""The keys of one run: created here, delivered over SSH, deleted with the run.

TLS between supervisors: one authority per run and one certificate per node. CURVE between trainers and pservers: one
key pair per process, and for every pserver the list of public keys that it accepts.
"""

from __future__ import annotations

import json
from collections.abc import Iterable

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from clusterctl.certificates import issue_for_nodes
from clusterctl.common.curve_keys import peer_keys, z85
from clusterctl.launch.plan import LaunchPlan

KeyFiles = dict[int, dict[str, str]]


def make_keys(launch: LaunchPlan) -> KeyFiles:
    """Return the files of each node's `keys/` directory: name to text. Secrets; never log them."""
    issued = issue_for_nodes(node.id for node in launch.nodes)
    files = {id_: {"tls.pem": made.own, "ca.pem": made.authority} for id_, made in issued.items()}
    if launch.needs_runtime and launch.settings.ps_security == "curve":
        for process, name, content in _curve_files(launch):
            files[process][name] = content
    return files


def _curve_files(launch: LaunchPlan) -> Iterable[tuple[int, str, str]]:
    pairs: dict[tuple[str, int], tuple[str, str]] = {}
    for process in launch.processes:
        pairs[process.role, process.rank] = _curve_pair()
    publics = {f"{role}{rank}": public for (role, rank), (public, _) in pairs.items()}
    peers = {role: peer_keys(role, publics) for role in ("pserver", "trainer")}
    for process in launch.processes:
        public, secret = pairs[process.role, process.rank]
        content = json.dumps({"public": public, "secret": secret, **peers[process.role]})
        yield process.node, f"{process.role}-{process.rank}.json", content


def _curve_pair() -> tuple[str, str]:
    """Return a public and a secret key of CURVE, which are those of X25519, as zmq.curve_keypair does.

    The library is loaded anyway, while zmq would take 20 ms to import.
    """
    secret = X25519PrivateKey.generate()
    public, private = secret.public_key().public_bytes_raw(), secret.private_bytes_raw()
    return z85(public), z85(private)
