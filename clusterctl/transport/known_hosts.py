"""OpenSSH known_hosts files: read, match and record host keys. Needs no SSH library."""

from __future__ import annotations

import base64
import binascii
import fcntl
import fnmatch
import hashlib
import hmac
import os
import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

HostKeyState = Literal["known", "unknown", "changed", "revoked"]


@dataclass(frozen=True)
class HostKey:
    """A server's public key: its `name` as in known_hosts (`host` or `[host]:port`), key type, wire blob."""

    name: str
    type: str
    blob: bytes

    @property
    def fingerprint(self) -> str:
        """The fingerprint as printed by `ssh-keygen -l`: SHA256:..."""
        return fingerprint(self.blob)

    @property
    def line(self) -> str:
        """The unhashed known_hosts line, without a line end."""
        return f"{self.name} {self.type} {base64.b64encode(self.blob).decode()}"


@dataclass(frozen=True)
class KnownKey:
    """An entry of a known_hosts file that applies to a host, with its location."""

    type: str
    blob: bytes
    revoked: bool
    file: Path
    line: int

    @property
    def fingerprint(self) -> str:
        return fingerprint(self.blob)

    @property
    def where(self) -> str:
        return f"{self.file}:{self.line}"


@dataclass(frozen=True)
class Verdict:
    """The result of checking a server's key; `against` holds the entries that contradict it."""

    state: HostKeyState
    against: tuple[KnownKey, ...] = ()


def fingerprint(blob: bytes) -> str:
    return "SHA256:" + base64.b64encode(hashlib.sha256(blob).digest()).decode().rstrip("=")


def known_hosts_name(host: str, port: int) -> str:
    """Return the name of a server in known_hosts: the bare host for port 22, else `[host]:port`."""
    host = host.lower()
    return host if port == 22 else f"[{host}]:{port}"


class KnownHosts:
    """The entries of known_hosts files. A file is read once, and again if it changes. Thread-safe.

    A missing or unreadable file counts as empty.
    """

    def __init__(self) -> None:
        self._read: dict[Path, tuple[tuple[int, ...], _KnownHostsFile]] = {}

    def keys(self, files: Iterable[Path], name: str) -> list[KnownKey]:
        """Return the entries for a host in all these files, in order."""
        return [key for file in files for key in self._file(file).keys(name)]

    def _file(self, file: Path) -> _KnownHostsFile:
        try:
            stat = file.stat()
            state = (stat.st_mtime_ns, stat.st_size, stat.st_ino)
            known = self._read.get(file)
            if known is None or known[0] != state:
                known = self._read[file] = (
                    state,
                    _KnownHostsFile(file, file.read_text(encoding="utf-8", errors="replace")),
                )
        except OSError:
            return _KnownHostsFile(file, "")
        return known[1]


class _Line(NamedTuple):
    number: int
    patterns: str
    type: str
    base64: str
    revoked: bool


class _KnownHostsFile:
    """One known_hosts file: lines with plain names are looked up by name, the others are tried in turn."""

    def __init__(self, path: Path, text: str) -> None:
        self._path = path
        self._plain: dict[str, list[_Line]] = {}
        self._others: list[_Line] = []
        for number, row in enumerate(text.splitlines(), 1):
            line = _parse(row, number)
            if line is None:
                continue
            if any(char in line.patterns for char in "|*?!"):
                self._others.append(line)
            else:
                for name in line.patterns.lower().split(","):
                    self._plain.setdefault(name, []).append(line)

    def keys(self, name: str) -> list[KnownKey]:
        others = [line for line in self._others if _matches(line.patterns, name)]
        return [key for line in sorted(self._plain.get(name, []) + others) if (key := self._key(line))]

    def _key(self, line: _Line) -> KnownKey | None:
        try:
            blob = base64.b64decode(line.base64, validate=True)
        except (binascii.Error, ValueError):
            return None
        return KnownKey(line.type, blob, line.revoked, self._path, line.number)


def known_keys(files: Iterable[Path], name: str) -> list[KnownKey]:
    """Return the entries for a host in all these files, read now."""
    return KnownHosts().keys(files, name)


def judge(keys: Sequence[KnownKey], offered: HostKey) -> Verdict:
    """Compare the offered key with the recorded ones. A host that is recorded only with other keys has changed."""
    revoked = tuple(key for key in keys if key.revoked and key.blob == offered.blob)
    if revoked:
        return Verdict("revoked", revoked)
    trusted = tuple(key for key in keys if not key.revoked)
    if any(key.blob == offered.blob for key in trusted):
        return Verdict("known")
    return Verdict("changed", trusted) if trusted else Verdict("unknown")


def record(file: Path, key: HostKey, *, hashed: bool = False) -> bool:
    """Append a key to a known_hosts file (mode 0600, a new directory 0700). Returns False if the file had it already.

    It uses one write under a lock: concurrent writers lose nothing, and a reader never sees half a line.
    """
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    name = _hash_name(key.name) if hashed else key.name
    line = f"{name} {key.type} {base64.b64encode(key.blob).decode()}\n"
    fd = os.open(file, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        if any(known.blob == key.blob and not known.revoked for known in known_keys([file], key.name)):
            return False
        size = os.fstat(fd).st_size
        torn = size > 0 and os.pread(fd, 1, size - 1) != b"\n"
        os.write(fd, (b"\n" if torn else b"") + line.encode())
        os.fsync(fd)
        return True
    finally:
        os.close(fd)


def _parse(row: str, number: int) -> _Line | None:
    fields = row.split()
    if not fields or fields[0].startswith("#"):
        return None
    marker = fields.pop(0) if fields[0].startswith("@") else ""
    # The line of a certificate authority does not apply to the plain keys that we request from servers.
    if len(fields) < 3 or marker not in ("", "@revoked"):
        return None
    patterns, kind, text = fields[:3]
    return _Line(number, patterns, kind, text, marker == "@revoked")


def _matches(patterns: str, name: str) -> bool:
    if patterns.startswith("|1|"):
        return _matches_hash(patterns, name)
    matched = False
    for pattern in patterns.lower().split(","):
        if pattern.startswith("!"):
            if matches_pattern(pattern[1:], name):
                return False
        else:
            matched = matched or matches_pattern(pattern, name)
    return matched


def matches_pattern(pattern: str, name: str) -> bool:
    """Return True if a name matches an OpenSSH pattern with `*` and `?`."""
    # Unlike in fnmatch, brackets are literal in known_hosts ("[host]:port").
    return pattern == name or fnmatch.fnmatchcase(name, pattern.replace("[", "[[]"))


def _matches_hash(entry: str, name: str) -> bool:
    try:
        salt, digest = (base64.b64decode(part) for part in entry[3:].split("|"))
    except (binascii.Error, ValueError):
        return False
    return hmac.compare_digest(hmac.new(salt, name.encode(), hashlib.sha1).digest(), digest)


def _hash_name(name: str) -> str:
    salt = secrets.token_bytes(20)
    digest = hmac.new(salt, name.encode(), hashlib.sha1).digest()
    return f"|1|{base64.b64encode(salt).decode()}|{base64.b64encode(digest).decode()}"
