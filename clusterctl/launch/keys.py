"""The keys of one run: created here, delivered over SSH, deleted with the run.

TLS between supervisors: one authority per run and one certificate per node. CURVE between trainers and pservers: one
key pair per process, and for every pserver the list of public keys that it accepts.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable
from typing import Any

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from clusterctl.certificates import issue_for_nodes
from clusterctl.launch.plan import LaunchPlan

KeyFiles = dict[int, dict[str, str]]

_DIGITS = "".join(map(chr, (*range(48, 58), *range(65, 91), *range(97, 123))))  # 0-9, A-Z, a-z
_AS_Z85 = str.maketrans(
    _DIGITS + "!#$%&()*+-;<=>?@^_`{|}~",  # of base64.b85encode
    _DIGITS[:10] + _DIGITS[36:] + _DIGITS[10:36] + ".-:+=^!/*?&<>()[]{}@%$#",  # of ZeroMQ's RFC 32
)


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
    servers = [pairs[key][0] for key in sorted(pairs) if key[0] == "pserver"]
    allowed = {public: f"trainer-{rank}" for (role, rank), (public, _) in pairs.items() if role == "trainer"}
    for process in launch.processes:
        public, secret = pairs[process.role, process.rank]
        others: dict[str, Any] = {"allow": allowed} if process.role == "pserver" else {"servers": servers}
        content = json.dumps({"public": public, "secret": secret, **others})
        yield process.node, f"{process.role}-{process.rank}.json", content


def _curve_pair() -> tuple[str, str]:
    """Return a public and a secret key of CURVE, which are those of X25519, as zmq.curve_keypair does.

    The library is loaded anyway, while zmq would take 20 ms to import.
    """
    secret = X25519PrivateKey.generate()
    public, private = secret.public_key().public_bytes_raw(), secret.private_bytes_raw()
    return _z85(public), _z85(private)


def _z85(key: bytes) -> str:
    return base64.b85encode(key).decode("ascii").translate(_AS_Z85)
