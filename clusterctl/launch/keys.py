"""The keys of one run: made here, delivered over SSH, gone with the run.

TLS between supervisors: an authority of the run's own and a certificate per node, P-256, valid from a year ago until
long after any job, so that a wrong clock does no harm. CURVE between trainers and pservers: a key pair per process, and
for every pserver the list of the public keys that it lets in.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterable
from typing import Any

from clusterctl.launch.plan import LaunchPlan
from clusterctl.timing import utc_now

VALID_YEARS = 20
KeyFiles = dict[int, dict[str, str]]


def make_keys(launch: LaunchPlan) -> KeyFiles:
    """For each node the files of its `keys/` directory: name to text. Secrets; never log them."""
    nodes = [node.id for node in launch.inventory.nodes]
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
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

    authority = ec.generate_private_key(ec.SECP256R1())
    issuer = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "clusterctl run")])
    begin = utc_now() - datetime.timedelta(days=365)

    def certify(name: x509.Name, key: ec.EllipticCurvePublicKey, *, is_authority: bool) -> x509.Certificate:
        usage = x509.KeyUsage(
            digital_signature=not is_authority,
            key_cert_sign=is_authority,
            crl_sign=is_authority,
            content_commitment=False,
            key_encipherment=False,
            data_encipherment=False,
            key_agreement=False,
            encipher_only=False,
            decipher_only=False,
        )
        issuer_id = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.public_key())
        builder = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(issuer)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(begin)
            .not_valid_after(begin + datetime.timedelta(days=365 * VALID_YEARS))
            .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
            .add_extension(usage, critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
            .add_extension(issuer_id, critical=False)
        )
        if not is_authority:
            purposes = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
            builder = builder.add_extension(x509.ExtendedKeyUsage(purposes), critical=False)
        return builder.sign(authority, hashes.SHA256())

    def pem(certificate: x509.Certificate) -> str:
        return certificate.public_bytes(serialization.Encoding.PEM).decode()

    trusted = pem(certify(issuer, authority.public_key(), is_authority=True))
    files: KeyFiles = {}
    for node in nodes:
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"node{node}")])
        secret = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        ).decode()
        certificate = pem(certify(name, key.public_key(), is_authority=False))
        files[node] = {"tls.pem": secret + certificate, "ca.pem": trusted}
    return files
