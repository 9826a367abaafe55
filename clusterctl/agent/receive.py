"""Dispatch, the node's side: a job directory appears whole and verified, or not at all.

The conversation: the request names the tree to be had, most often as changes to one that this node should have; the
answer says what the node has and which bytes it lacks; the control machine decides for all nodes, and sends them. A
lock keeps two dispatches apart from the request to the end.

Bytes come as blobs: the digest (32 bytes), the size (8 bytes, big-endian), the bytes; a size of `END` ends them.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import tempfile
import time
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable

from clusterctl.agent.files import delete, digest_of, read_json, write_all
from clusterctl.agent.paths import RESERVED, JobPaths, find_jobs, incoming_dir
from clusterctl.agent.protocol import GO_S, AgentError, Gone, Peer
from clusterctl.agent.store import (
    Row,
    Source,
    Stamp,
    copy_file,
    dispatch_lock,
    find_sources,
    is_exact,
    read_manifest,
    stamp_of,
    write_manifest,
)
from clusterctl.agent.supersede import (
    changed,
    finish_directory,
    journal_of,
    make_link,
    supersede,
    was_started,
    write_record,
)
from clusterctl.agent.tree import DIRECTORY, END, FILE, HEADER, LINK, Entry, content_of, decode, fold_rows, order

if TYPE_CHECKING:
    from clusterctl.agent.relay import Relay

READ_BYTES = 1 << 18


class Stream:
    """Bytes that follow on standard input, compressed or not."""

    def __init__(self, source: Callable[[int], bytes | memoryview], compressed: bool) -> None:
        self._source = source
        self._zlib = zlib.decompressobj() if compressed else None
        self._data = memoryview(b"")

    def some(self, count: int) -> memoryview:
        """At least one and at most `count` bytes; raises Gone at the end of the stream."""
        if not self._data:
            self._data = memoryview(self._more())
        piece, self._data = self._data[:count], self._data[count:]
        return piece

    def _more(self) -> bytes | memoryview:
        while True:
            if self._zlib is None:
                data = self._source(READ_BYTES)
            else:
                packed = self._zlib.unconsumed_tail or self._source(READ_BYTES)
                data = self._zlib.decompress(packed, READ_BYTES)
                if packed and not data:
                    continue
            if not data:
                raise Gone
            return data

    def skip(self, count: int) -> None:
        while count:
            count -= len(self.some(count))

    def exactly(self, count: int) -> bytes:
        parts = []
        while count:
            piece = self.some(count)
            count -= len(piece)
            parts.append(bytes(piece))
        return b"".join(parts)


def receive(root: Path, request: dict[str, Any], peer: Peer) -> dict[str, Any]:
    """Serves one dispatch: says what is here, and becomes what the control machine decides."""
    holder = {name: request[name] for name in ("nonce", "node", "by")}
    with dispatch_lock(root, holder):
        return _Dispatch(root, request, peer).serve()


class _Dispatch:
    def __init__(self, root: Path, request: dict[str, Any], peer: Peer) -> None:
        self._root = root
        self._request = request
        self._peer = peer
        self._newest = next(find_jobs(root), None)
        self._record: dict[str, Any] = (read_json(self._newest.record) or {}) if self._newest else {}
        self._base = read_manifest(self._newest.dir) if self._newest else None
        self._job = self._newest.dir if self._newest else root
        self._exact = False
        self._entries: list[Entry] = []
        self._sources: dict[str, Source] = {}
        self._relay: Relay | None = None

    def serve(self) -> dict[str, Any]:
        request = self._request
        listed = _unpack(self._peer, request["manifest_bytes"])
        answer = {
            "jobs": [job.dir.name for job in find_jobs(self._root)],
            "newest": self._about_newest(),
            "holds": self._holds(),
        }
        known = self._understand(listed, request["base"])
        answer.update(self._be_ready_to_relay())
        self._peer.send({**answer, "missing": fold_rows(self._lacking()) if known else None, **self._gone()})
        while True:
            word = self._peer.receive(GO_S)
            if "manifest_bytes" in word:
                self._understand(_unpack(self._peer, word["manifest_bytes"]), None)
                self._peer.send({"missing": fold_rows(self._lacking()), **self._gone()})
            elif "keep" in word:
                _sweep(incoming_dir(self._root))
                return {"dir": str(self._root / word["keep"]), "kept": True}
            elif "go" in word:
                return self._build(word)
            else:
                raise AgentError("the dispatch was given up")

    def _about_newest(self) -> dict[str, Any] | None:
        job = self._newest
        if job is None:
            return None
        started = was_started(job)
        self._exact = not started and self._base is not None and is_exact(job.dir, self._base)
        if self._exact and self._request["rehash"]:
            files = [row.entry for row in self._base or () if row.stamp]
            self._exact = all(digest_of(f"{job.dir}/{entry.path}") == entry.digest for entry in files)
        about = {name: self._record.get(name) for name in ("tree", "source", "node", "nodes")}
        return {"job": job.dir.name, "started": started, "exact": self._exact, **about}

    def _be_ready_to_relay(self) -> dict[str, Any]:
        if not self._request["relay"]:
            return {}
        from clusterctl.agent.addresses import find_address
        from clusterctl.agent.relay import Relay

        try:
            address = find_address(self._request["address"], self._request["nic"])
            self._relay = Relay(address)
        except (AgentError, OSError):
            return {}  # then it gets everything directly
        return {"address": address, "port": self._relay.port}

    def _gone(self) -> dict[str, Any]:
        """For a plan: the paths that an in-place change would remove."""
        if not self._request["plan"]:
            return {}
        wanted = {entry.path for entry in self._entries}
        return {"gone": [row.entry.path for row in self._base or () if self._exact and row.entry.path not in wanted]}

    def _holds(self) -> bool:
        """Whether the job that is to be completed is here already, with this very tree."""
        job = self._request["complete"]
        record = (read_json(JobPaths(self._root / job).record) if job else None) or {}
        return bool(record.get("tree") == self._request["tree"])

    def _understand(self, listed: dict[str, Any], base: str | None) -> bool:
        """Takes the wanted tree; False when it is told as changes to one that is not here."""
        if base is None:
            rows = listed["rows"]
        elif self._base is None or self._record.get("tree") != base:
            return False
        elif not listed["rows"] and not listed["gone"]:
            self._entries = [row.entry for row in self._base]
            return True
        else:
            known = {row.entry.path: tuple(row.entry) for row in self._base}
            for path in listed["gone"]:
                known.pop(path, None)
            known.update((row[0], tuple(row)) for row in listed["rows"])
            rows = [known[path] for path in sorted(known, key=order)]
        self._entries = decode(rows)
        if content_of(self._entries) != self._request["tree"]:
            raise AgentError("the list of files arrived damaged", hint="dispatch again")
        ours = next((entry.path for entry in self._entries if entry.path in RESERVED), None)
        if ours:
            raise AgentError(f"{ours!r} cannot be in a workspace: it is made on the node", kind="refused")
        return True

    def _lacking(self) -> list[int]:
        """The rows whose bytes must be sent, each digest once. Finds the sources of all others."""
        request = self._request
        if self._exact and self._record.get("tree") == request["tree"]:
            return []
        sizes = {entry.digest: entry.size for entry in self._entries if entry.kind == FILE}
        self._sources = {}
        if self._exact and self._base:
            for entry, stamp in self._base:
                if stamp and entry.digest in sizes:
                    self._sources[entry.digest] = Source(f"{self._job}/{entry.path}", stamp, False)
        missing = [digest for digest in sizes if digest not in self._sources]
        if missing:
            self._sources.update(find_sources(self._root, missing, sizes))
        if request["rehash"]:
            self._sources = {digest: s for digest, s in self._sources.items() if digest_of(s.path) == digest}
        return _first_rows(self._entries, self._sources)

    def _build(self, word: dict[str, Any]) -> dict[str, Any]:
        began = time.monotonic()
        staging = Path(tempfile.mkdtemp(dir=incoming_dir(self._root)))
        old = word["supersede"] if self._exact else None
        base = {row.entry.path: row for row in self._base or ()} if old else {}
        work = Staging(staging, self._entries, base, in_place=bool(old))
        try:
            work.begin()
            if not self._sources and self._record.get("tree") == self._request["tree"]:
                self._lacking()  # was left out while it seemed that nothing would be built
            if "relay" in word:
                self._take_from_relay(work, word["relay"])
                word.update(self._peer.receive(GO_S))
            if word["blobs"]:
                work.take(Stream(self._peer.incoming.read1, word["compressed"]))  # type: ignore[attr-defined]
            copying = time.monotonic()
            work.copy(self._sources)
            copied = time.monotonic() - copying
            record = self._new_record(word, old)
            if old:
                if not supersede(self._root, staging, old, record, self._entries):
                    raise AgentError(f"{old} was started meanwhile", hint="dispatch again")
            else:
                work.finish(record)
                (staging / "tree").rename(self._root / word["go"])
        except Gone:
            if not work.files_received:
                shutil.rmtree(staging, ignore_errors=True)
            raise  # what arrived stays for the next dispatch
        except BaseException:
            if not journal_of(self._root).exists():  # else the next agent call goes on with what is staged
                shutil.rmtree(staging, ignore_errors=True)
            raise
        _sweep(incoming_dir(self._root))
        return {
            "dir": str(self._root / word["go"]),
            "kept": False,
            "files_received": work.files_received,
            "bytes_received": work.bytes_received,
            "bytes_copied": work.bytes_copied,
            "copy_seconds": copied,
            "seconds": time.monotonic() - began,
        }

    def _take_from_relay(self, work: Staging, how: dict[str, Any]) -> None:
        """Whatever of the stream comes and is right; then says what is lacking still."""
        from clusterctl.agent.relay import Branch, Keys, RelayBroken

        relay = self._relay
        assert relay is not None
        source = None if how["upstream"] else self._peer.incoming.read1  # type: ignore[attr-defined]
        branches = [Branch(*branch) for branch in how["downstream"]]
        try:
            relay.start(Keys(how["own"], how["authority"]), how["upstream"], branches, how["length"], source)
            work.take(Stream(relay.read, compressed=False), strict=False)
        except (RelayBroken, Gone, OSError):  # an unusable key is an OSError of ssl
            if how["upstream"] is None:
                raise Gone from None  # the control machine itself is gone
        finally:
            relay.finish()
        lacking = [n for n in _first_rows(self._entries, self._sources) if not work.has(n)]
        self._peer.send({"lacking": fold_rows(lacking)})

    def _new_record(self, word: dict[str, Any], old: str | None) -> dict[str, Any]:
        request = self._request
        files = [entry for entry in self._entries if entry.kind == FILE]
        replaced = [*self._record.get("supersedes", []), old] if old else []
        return {
            "v": 1,
            "job": word["go"],
            **{name: request[name] for name in ("node", "nodes", "workspace", "source", "content", "tree")},
            "supersedes": replaced[-100:],
            "files": len(files),
            "bytes": sum(entry.size for entry in files),
            "t": time.time(),
        }


class Staging:
    """A tree under construction: all of it in `tree/`, or, to change one in place, only the new files in `new/`."""

    def __init__(self, place: Path, entries: list[Entry], base: dict[str, Row], *, in_place: bool) -> None:
        self._place = place
        self._entries = entries
        self._stamps: dict[int, Stamp] = {}
        self._wanted: dict[str, list[int]] = {}
        self.files_received = self.bytes_received = self.bytes_copied = 0
        self._in_place = in_place
        numbers = changed(base, entries) if in_place else _files(entries)
        for number in numbers:
            self._wanted.setdefault(entries[number].digest, []).append(number)

    def begin(self) -> None:
        """Makes all directories."""
        (self._place / ("new" if self._in_place else "tree")).mkdir(0o700)
        if not self._in_place:
            for entry in self._entries:
                if entry.kind == DIRECTORY:
                    os.mkdir(f"{self._place}/tree/{entry.path}", 0o700)  # noqa: PTH102

    def _name(self, number: int) -> str:
        return f"new/{number}" if self._in_place else f"tree/{self._entries[number].path}"

    def has(self, number: int) -> bool:
        return number in self._stamps

    def take(self, stream: Stream, *, strict: bool = True) -> None:
        """Blobs until their end.

        Raises AgentError for one that nobody asked for, or that is not what its digest says; when not `strict`, such
        ones are passed over.
        """
        with (self._place / "arrived").open("a", buffering=1) as arrived:
            while True:
                digest, size = HEADER.unpack(stream.exactly(HEADER.size))
                if size == END:
                    return
                numbers = self._wanted.get(digest.hex())
                if numbers is None or size != self._entries[numbers[0]].size or self.has(numbers[0]):
                    if strict:
                        raise AgentError("bytes came that nobody asked for", hint="dispatch again")
                    stream.skip(size)
                    continue
                number = numbers[0]
                if not self._write(number, stream):
                    if strict:
                        raise _other_contents(self._entries[number])
                    continue
                self.files_received += 1
                self.bytes_received += size
                arrived.write(json.dumps([digest.hex(), self._name(number), self._stamps[number]]) + "\n")

    def _write(self, number: int, stream: Stream) -> bool:
        """Whether the bytes were the right ones; others are not kept."""
        entry = self._entries[number]
        digest = hashlib.sha256()
        left = entry.size
        fd = self._create(number)
        try:
            while left:
                data = stream.some(left)
                write_all(fd, data)
                digest.update(data)
                left -= len(data)
            self._close_up(fd, number)
        except Gone:
            os.unlink(f"{self._place}/{self._name(number)}")  # noqa: PTH108
            raise
        finally:
            os.close(fd)
        if digest.hexdigest() == entry.digest:
            return True
        os.unlink(f"{self._place}/{self._name(number)}")  # noqa: PTH108
        del self._stamps[number]
        return False

    def _create(self, number: int) -> int:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
        return os.open(f"{self._place}/{self._name(number)}", flags, 0o600)

    def _close_up(self, fd: int, number: int) -> None:
        entry = self._entries[number]
        os.fchmod(fd, entry.mode)
        os.utime(fd, ns=(entry.mtime_ns, entry.mtime_ns))
        self._stamps[number] = stamp_of(os.fstat(fd))

    def copy(self, sources: dict[str, Source]) -> None:
        """All files that did not come, from where their bytes are on this node."""
        for digest, numbers in self._wanted.items():
            done = [number for number in numbers if number in self._stamps]
            source = self._own(done[0]) if done else sources.get(digest)
            for number in numbers:
                if number in self._stamps:
                    continue
                if source is None:
                    raise AgentError(f"the bytes of {self._entries[number].path!r} did not arrive")
                self._copy(number, source)
                source = self._own(number)

    def _own(self, number: int) -> Source:
        return Source(f"{self._place}/{self._name(number)}", self._stamps[number], False)

    def _copy(self, number: int, source: Source) -> None:
        entry = self._entries[number]
        if source.movable:
            os.rename(source.path, f"{self._place}/{self._name(number)}")  # noqa: PTH104
            fd = os.open(f"{self._place}/{self._name(number)}", os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        else:
            fd = self._create(number)
        try:
            if not source.movable:
                copy_file(source, entry.size, fd)
                self.bytes_copied += entry.size
            self._close_up(fd, number)
        finally:
            os.close(fd)

    def finish(self, record: dict[str, Any]) -> None:
        """Links, directories' times, and what is ours."""
        tree = self._place / "tree"
        for entry in self._entries:
            if entry.kind == LINK:
                make_link(f"{tree}/{entry.path}", entry)
        for entry in reversed(self._entries):  # children first: making a child changes its directory's time
            if entry.kind == DIRECTORY:
                finish_directory(f"{tree}/{entry.path}", entry)
        job = JobPaths(tree)
        write_record(job, record)
        write_manifest(job.meta, [Row(entry, self._stamps.get(number)) for number, entry in enumerate(self._entries)])


def _unpack(peer: Peer, count: int) -> dict[str, Any]:
    """A list of files, or of changes to one: `{"rows", "gone"}`."""
    if not count:
        return {"rows": [], "gone": []}
    packed = peer.incoming.read(count)
    if len(packed) != count:
        raise Gone
    try:
        listed: dict[str, Any] = json.loads(zlib.decompress(packed))
    except (zlib.error, ValueError) as exc:
        raise AgentError(f"the list of files arrived damaged: {exc}") from exc
    return listed


def _other_contents(entry: Entry) -> AgentError:
    return AgentError(
        f"{entry.path!r} arrived with other contents than announced",
        hint="it changed while it was being read: dispatch again when nothing writes to the workspace",
    )


def _files(entries: list[Entry]) -> list[int]:
    return [number for number, entry in enumerate(entries) if entry.kind == FILE]


def _first_rows(entries: list[Entry], sources: dict[str, Source]) -> list[int]:
    """The rows of the files that have no source, the first of each digest."""
    seen = set(sources)
    rows = []
    for number in _files(entries):
        digest = entries[number].digest
        if digest not in seen:
            seen.add(digest)
            rows.append(number)
    return rows


def _sweep(incoming: Path) -> None:
    """Removes what broken dispatches left; the lock says that none is under way."""
    for place in incoming.iterdir():
        with contextlib.suppress(OSError):
            delete(place)
