"""TLS between nodes: both sides prove a name with a certificate of the same authority."""

from __future__ import annotations

import re
import ssl

from clusterctl.common.paths import RunPaths


def mutual_context(authority: bytes, chain: str, *, server: bool) -> ssl.SSLContext:
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
    return mutual_context(run.tls_authority.read_bytes(), str(run.tls), server=server)


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
