"""Certificates for one run or one dispatch: a separate authority, and a certificate for each node. P-256.

They have subject and authority key identifiers and key usage, which newer Pythons require. They are valid at all times,
so that a wrong clock does no harm: the trust is in the authority, which lives as long as its run.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

VALID_FROM, VALID_UNTIL = datetime.datetime(1970, 1, 1), datetime.datetime(9999, 12, 31, 23, 59, 59)  # in UTC
NO_USAGE = dict.fromkeys(
    (
        "digital_signature",
        "content_commitment",
        "key_encipherment",
        "data_encipherment",
        "key_agreement",
        "key_cert_sign",
        "crl_sign",
        "encipher_only",
        "decipher_only",
    ),
    False,
)


class NodeCertificate(NamedTuple):
    """A node's private key with its certificate, and the authority that it trusts, as PEM. Secrets; never log them."""

    own: str
    authority: str


class Authority:
    """Issues certificates. Its key exists only in this object and is never written anywhere."""

    def __init__(self) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _named("clusterctl")
        usage = x509.KeyUsage(**{**NO_USAGE, "key_cert_sign": True, "crl_sign": True})
        builder = self._build(self._name, self._key.public_key(), usage, is_authority=True)
        self.trusted = _pem(builder.sign(self._key, hashes.SHA256()))

    def issue(self, name: str) -> str:
        """Return a new private key and its certificate for the common name `name`, as PEM, for clients and servers."""
        key = ec.generate_private_key(ec.SECP256R1())
        usage = x509.KeyUsage(**{**NO_USAGE, "digital_signature": True})
        purposes = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH])
        builder = self._build(_named(name), key.public_key(), usage, is_authority=False)
        certificate = builder.add_extension(purposes, critical=False).sign(self._key, hashes.SHA256())
        secret = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        return secret.decode() + _pem(certificate)

    def _build(
        self, subject: x509.Name, key: ec.EllipticCurvePublicKey, usage: x509.KeyUsage, *, is_authority: bool
    ) -> x509.CertificateBuilder:
        issuer_id = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(VALID_FROM)
            .not_valid_after(VALID_UNTIL)
            .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
            .add_extension(usage, critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
            .add_extension(issuer_id, critical=False)
        )


def issue_for_nodes(ids: Iterable[int]) -> dict[int, NodeCertificate]:
    """Return certificates of a new authority for the names `node0`, `node1` and so on, by node id."""
    authority = Authority()
    return {id_: NodeCertificate(authority.issue(f"node{id_}"), authority.trusted) for id_ in ids}


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _pem(certificate: x509.Certificate) -> str:
    return certificate.public_bytes(serialization.Encoding.PEM).decode()
