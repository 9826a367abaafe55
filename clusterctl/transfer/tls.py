"""TLS between nodes: both sides prove a name with a certificate of the same authority.

All contexts are made here, and `clusterctl/certificates.py` issues all certificates.
"""

from __future__ import annotations

import contextlib
import os
import re
import ssl
import tempfile
from collections.abc import Iterator

from clusterctl.common.paths import RunPaths

#: Of TLS 1.2, for relays.
CIPHERS = "ECDHE-ECDSA-AES128-GCM-SHA256:ECDHE-ECDSA-AES256-GCM-SHA384"


def _mutual_context(authority: bytes, chain: str, *, server: bool) -> ssl.SSLContext:
    """Return a context for TLS 1.2 and later that accepts every certificate of `authority`, and no other.

    `authority` is a certificate as PEM, `chain` the path of a PEM file with this side's private key and certificate.
    Raises OSError if they cannot be used.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server else ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.check_hostname = False  # nodes have names of their own: see `peer_name`
    context.verify_mode = ssl.CERT_REQUIRED
    try:
        context.load_verify_locations(cadata=authority.decode("ascii"))
    except ValueError as exc:
        raise OSError(f"not a certificate: {exc}") from exc
    context.load_cert_chain(chain)
    return context


def run_context(run: RunPaths, *, server: bool) -> ssl.SSLContext:
    """Return the context of either side of a run. Names are checked by `peer_node`. Raises OSError."""
    return _mutual_context(run.tls_authority.read_bytes(), str(run.tls), server=server)


def relay_context(own: str, authority: str, *, server: bool) -> ssl.SSLContext:
    """Return the context of either side of a relay, from PEM. Its users check names with `peer_name`. Raises OSError.

    TLS 1.2 by choice: the standard library cannot choose the cipher of TLS 1.3, whose default is AES-256, a third
    slower to send. Also, in 1.2 neither side sends a byte of the stream before both are authenticated.
    """
    with _in_a_file(own) as chain:
        context = _mutual_context(authority.encode(), chain, server=server)
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers(CIPHERS)
    return context


@contextlib.contextmanager
def _in_a_file(secret: str) -> Iterator[str]:
    """Write a secret to a file, in memory if possible, else private: the ssl module reads keys only from files."""
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create("relay")
        with os.fdopen(fd, "w") as f:
            f.write(secret)
            f.flush()
            yield f"/proc/self/fd/{fd}"
    else:
        with tempfile.NamedTemporaryFile("w") as named:
            named.write(secret)
            named.flush()
            yield named.name


def peer_name(sock: ssl.SSLSocket) -> str:
    """Return the common name in the other side's verified certificate, or an empty string."""
    subject = (sock.getpeercert() or {}).get("subject", ())
    return next((str(value) for part in subject for key, value in part if key == "commonName"), "")  # type: ignore[str-unpack]


def peer_node(sock: ssl.SSLSocket) -> int:
    """Return the node id in the name of the other side, which is `nodeN`. Raises OSError for other names."""
    name = peer_name(sock)
    if not re.fullmatch("node[0-9]+", name):
        raise OSError(f"not a supervisor of this run: its certificate is for {name!r}")
    return int(name[len("node") :])
