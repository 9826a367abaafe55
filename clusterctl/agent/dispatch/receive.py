"""The node's side of a dispatch: a job directory appears whole and verified, or not at all.

The conversation: the request names the wanted tree, most often as changes to one that this node should have; the answer
reports what the node has and which bytes it lacks; the control machine decides for all nodes, and sends the bytes. A
lock excludes other dispatches from the request to the end.

Bytes arrive as blobs: the digest (32 bytes), the size (8 bytes, big-endian), the bytes; a size of `END` ends them.
"""

from __future__ import annotations

import os
import time
import zlib
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, Callable

from clusterctl.agent.dispatch.edit import Edit
from clusterctl.agent.dispatch.in_place import change, changed, journal_of, supersede, was_started
from clusterctl.agent.dispatch.room import RequiredSpace
from clusterctl.agent.dispatch.staging import Staging
from clusterctl.agent.node.content import (
    FEW,
    LocalCopy,
    Row,
    Sums,
    exact_listing,
    find_sources,
    find_torn,
    is_verified,
    mark_verified,
    read_manifest,
    sums_of,
)
from clusterctl.agent.node.locks import DispatchLock
from clusterctl.agent.peer import Peer
from clusterctl.agent.relay.relay import Relay
from clusterctl.agent.relay.take import be_ready, take_relayed
from clusterctl.common.errors import AgentError, Gone
from clusterctl.common.files import delete, digest_of, read_json, sync_directory, sync_disk
from clusterctl.common.paths import RESERVED, JobPaths, find_jobs, incoming_dir, is_job_id
from clusterctl.common.requests import DispatchRequest
from clusterctl.common.safe_json import dumps, loads
from clusterctl.common.shards import described
from clusterctl.common.tree import FILE, ByteReader, Entry, content_of_json, decode, fold_rows, order, shortened


def receive(root: Path, request: DispatchRequest, peer: Peer) -> dict[str, Any]:
    """Serve one dispatch: report what this node has, then carry out the control machine's decision."""
    holder = {"nonce": request["nonce"], "node": request["node"], "by": request["by"]}
    with DispatchLock(root, holder):
        return _DispatchReceiver(root, request, peer).serve()


class _DispatchReceiver:
    def __init__(self, root: Path, request: DispatchRequest, peer: Peer) -> None:
        self._root = root
        self._request = request
        self._peer = peer
        self._jobs = [job for job in find_jobs(root) if is_job_id(job.dir.name)]  # those that a dispatch may replace
        self._newest = self._jobs[0] if self._jobs else None
        self._record: dict[str, Any] = (read_json(self._newest.record) or {}) if self._newest else {}
        self._started = False  # the newest job
        self._listing: str | None = None  # of the newest job, if it was never started, and is as dispatched
        self._base: list[Row] | None = None
        self._changes: dict[str, Any] = {}
        self._edit: Edit | None = None
        self._entries: list[Entry] = []
        self._listed = b"[]"
        self._sources: dict[str, LocalCopy] = {}
        self._torn: dict[str, tuple[Path, int]] = {}
        self._relay: Relay | None = None
        self._staging = incoming_dir(root) / f"{request['nonce']}-{os.getpid()}"

    def serve(self) -> dict[str, Any]:
        request = self._request
        self._changes = _unpack(self._peer, request["manifest_bytes"])
        if self._newest:
            self._look_at(self._newest)
        known = self._set_edit() or self._set_tree(self._changes, request["base"])
        answer = {
            "jobs": [job.dir.name for job in self._jobs],
            "newest": self._about_newest(),
            "holds": self._holds(),
        }
        self._peer.send({**answer, **(self._lacking() if known else {"missing": None}), **self._gone()})
        while True:
            message = self._peer.receive()
            if "manifest_bytes" in message:
                self._set_tree(_unpack(self._peer, message["manifest_bytes"]), None)
                self._peer.send({**self._lacking(), **self._gone()})
            elif "listen" in message:
                self._peer.send(self._listen())
            elif "keep" in message:
                _sweep(incoming_dir(self._root), self._peer.heartbeat)
                return {"dir": str(self._root / message["keep"]), "kept": True}
            elif "go" in message:
                return self._build(message)
            else:
                raise AgentError("the dispatch was cancelled")

    def _about_newest(self) -> dict[str, Any] | None:
        job = self._newest
        if job is None:
            return None
        about = {name: self._record.get(name) for name in ("tree", "source", "node", "nodes")}
        return {"job": job.dir.name, "started": self._started, "exact": self._exact, **about}

    def _look_at(self, job: JobPaths) -> None:
        """Determine whether the newest job is exact."""
        self._started = was_started(job)
        self._listing = None if self._started else exact_listing(job.dir)
        if self._exact and (self._request["rehash"] or not is_verified(job.meta)):
            self._read_base()
            if not all(
                digest_of(job.dir / entry.path, self._peer.heartbeat) == entry.digest
                for entry, stamp in self._base or ()
                if stamp
            ):
                self._listing = None
            if self._exact:
                mark_verified(job.meta)

    @property
    def _exact(self) -> bool:
        return self._listing is not None

    def _read_base(self) -> None:
        """Read the rows of the newest job, which an edit does without. A job without a manifest is not exact."""
        if self._base is None and self._newest:
            self._base = read_manifest(self._newest.dir)
        if self._base is None:
            self._listing = None

    def _listen(self) -> dict[str, Any]:
        self._relay, where = be_ready(self._request["address"], self._request["nic"])
        return where

    def _gone(self) -> dict[str, Any]:
        """Return the paths that an in-place change would remove, for a plan."""
        if not self._request["plan"]:
            return {}
        wanted = {entry.path for entry in self._entries}
        return {"gone": [row.entry.path for row in self._base or () if self._exact and row.entry.path not in wanted]}

    def _holds(self) -> bool:
        """Return True if the job to be completed is here already, with this same tree."""
        job = next((job for job in self._jobs if job.dir.name == self._request["complete"]), None)
        record = (read_json(job.record) if job else None) or {}
        return bool(record.get("tree") == self._request["tree"])

    def _set_tree(self, listed: dict[str, Any], base: str | None) -> bool:
        """Set the wanted tree. Return False if it is given as changes to a tree that is not here."""
        self._edit = None
        self._read_base()
        if base is None:
            rows = listed["rows"]
        elif self._base is None or self._record.get("tree") != base:
            return False
        elif not listed["rows"] and not listed["gone"]:
            self._entries = [row.entry for row in self._base]
            self._listed = dumps(self._entries)
            return True
        else:
            known = {row.entry.path: row.entry for row in self._base}
            for path in listed["gone"]:
                known.pop(path, None)
            known.update((row[0], row) for row in listed["rows"])
            rows = [known[path] for path in sorted(known, key=order)]
        self._entries = decode(rows)
        self._listed = dumps(self._entries)
        if content_of_json(self._listed) != self._request["tree"]:
            raise AgentError("the list of files arrived damaged", hint="dispatch again")
        ours = next((entry.path for entry in self._entries if entry.path in RESERVED), None)
        if ours:
            raise AgentError(f"{ours!r} cannot be in a workspace: it is made on the node", kind="refused")
        check_lengths(self._root, self._entries, str(self._staging / "tree"))
        return True

    def _set_edit(self) -> bool:
        """Set the wanted tree if it is an edit of the newest job. Return False if it is not."""
        request, rows = self._request, self._changes["rows"]
        if self._newest is None or self._listing is None or request["base"] is None:
            return False
        if (
            self._record.get("tree") != request["base"]
            or request["plan"]
            or self._changes["gone"]
            or not 0 < len(rows) <= FEW
        ):
            return False
        try:
            edit = Edit(self._newest, self._listing, [Entry(*row) for row in rows])
        except (OSError, TypeError, ValueError, AttributeError):
            return False
        if content_of_json(edit.listed) != request["tree"]:
            return False
        check_lengths(self._root, [edit.entries[number] for number in edit.numbers], str(self._staging / "tree"))
        self._edit, self._entries, self._listed = edit, edit.entries, edit.listed
        return True

    def _files(self) -> list[int]:
        """Return the rows of the files that may be lacking here."""
        if self._edit:
            return self._edit.files
        return [number for number, entry in enumerate(self._entries) if entry.kind == FILE]

    def _changed(self) -> list[int]:
        """Return the rows of the files whose bytes are not those of the newest job."""
        return self._edit.files if self._edit else changed(self._base_by_path(), self._entries)

    def _base_by_path(self) -> dict[str, Row]:
        return {row.entry.path: row for row in self._base or ()}

    def _sums(self) -> Sums:
        return self._edit.sums if self._edit else sums_of(self._entries)

    def _lacking(self) -> dict[str, Any]:
        """Return the rows whose bytes must be sent, each digest once, and how many of their bytes are here already.

        Also find the sources of the others, and the space that all of it takes.
        """
        files = self._files()
        sizes = {self._entries[number].digest: self._entries[number].size for number in files}
        self._sources = {}
        if self._exact and self._newest and not self._edit:
            for entry, stamp in self._base or ():
                if stamp and entry.digest in sizes:
                    self._sources[entry.digest] = LocalCopy(self._newest.dir / entry.path, stamp, False, True)
        missing = [digest for digest in sizes if digest not in self._sources]
        sources = find_sources(self._root, missing, sizes, self._peer.heartbeat) if missing else {}
        rehash = self._request["rehash"]
        sources = {
            digest: source
            for digest, source in sources.items()
            if (source.sure and not rehash) or digest_of(source.path, self._peer.heartbeat) == digest
        }
        self._sources.update(sources)
        self._torn = find_torn(incoming_dir(self._root), {d: sizes[d] for d in missing if d not in sources})
        torn = {digest: size for digest, (_, size) in self._torn.items()}
        need = RequiredSpace(self._root, self._entries, self._sources, torn)
        same = self._edit.same if self._edit else Sums(directories=self._sums().directories)
        return {
            "missing": fold_rows(self._first_rows()),
            "torn": torn,
            "room": need.about(files, same, self._changed() if self._exact else None),
        }

    def _first_rows(self) -> list[int]:
        """Return the rows of the files that have no source, the first of each digest."""
        seen = set(self._sources)
        rows = []
        for number in self._files():
            digest = self._entries[number].digest
            if digest not in seen:
                seen.add(digest)
                rows.append(number)
        return rows

    def _build(self, message: dict[str, Any]) -> dict[str, Any]:
        began = time.monotonic()
        target = self._root / message["go"]
        if os.path.lexists(target):
            hint = "dispatch again, and look at who made it"
            raise AgentError(f"{target} exists, and is not a job of this account", kind="refused", hint=hint)
        staging = self._staging
        old = message["supersede"] if self._exact else None
        if self._edit and old is None:  # a new job takes all files
            self._set_tree(self._changes, self._request["base"])
            self._lacking()
        numbers = self._changed() if old else self._files()
        torn = {digest: path for digest, (path, _) in self._torn.items()}
        work = Staging(staging, self._entries, numbers, in_place=bool(old), torn=torn, heartbeat=self._peer.heartbeat)
        try:
            work.begin()
            self._take(work, message)
            copying = time.monotonic()
            work.copy(self._sources)
            copied = time.monotonic() - copying
            record = self._new_record(message)
            if old is None:
                work.finish(record, self._listed)
                sync_disk(staging, self._peer.heartbeat)
                (staging / "tree").rename(target)
                sync_directory(self._root)
            elif not supersede(self._root, staging, old, record, self._listed, self._apply, self._peer.heartbeat):
                raise AgentError(f"{old} was started in the meantime", hint="dispatch again")
        except BaseException as exc:
            stays = isinstance(exc, Gone) and (work.files_received or work.torn())  # for the next dispatch to continue
            if not stays and not journal_of(self._root).exists():  # else the next agent call continues it
                with suppress(OSError):
                    delete(staging)
            raise
        _sweep(incoming_dir(self._root), self._peer.heartbeat)
        return {
            "dir": str(target),
            "kept": False,
            "files_received": work.files_received,
            "bytes_received": work.bytes_received,
            "bytes_copied": work.bytes_copied,
            "copy_seconds": copied,
            "seconds": time.monotonic() - began,
        }

    def _apply(self, tree: Path, staging: Path, record: dict[str, Any]) -> None:
        if self._edit:
            self._edit.apply(tree, staging, record)
        else:
            change(tree, staging, record, self._entries, self._base_by_path())

    def _take(self, work: Staging, message: dict[str, Any]) -> None:
        """Receive bytes through the relay, then directly, until none are missing."""
        if "relay" in message:
            self._take_from_relay(work, message["relay"], message["resume"])
            message = self._request_missing(work)
        while True:
            if message["blobs"]:
                work.take(ByteReader(self._peer.read_some, message["compressed"]), message["resume"])
            if not self._lacks(work):
                return
            message = self._request_missing(work)  # the beginning of a torn file was wrong

    def _take_from_relay(self, work: Staging, how: dict[str, Any], resume: dict[str, int]) -> None:
        """Receive the relay's stream; damaged blobs are skipped."""
        assert self._relay is not None
        take_relayed(self._relay, how, self._peer, lambda stream: work.take(stream, resume, strict=False))

    def _lacks(self, work: Staging) -> list[int]:
        return [number for number in self._first_rows() if not work.has(number)]

    def _request_missing(self, work: Staging) -> dict[str, Any]:
        """Report the missing files. Return the next message, which announces them."""
        self._peer.send({"missing": fold_rows(self._lacks(work)), "torn": work.torn()})
        return self._peer.receive()

    def _new_record(self, message: dict[str, Any]) -> dict[str, Any]:
        request, sums = self._request, self._sums()
        return {
            "v": 1,
            "job": message["go"],
            **{name: request[name] for name in ("node", "nodes", "workspace", "source", "content", "tree")},
            "files": sums.files,
            "bytes": sums.bytes,
            "t": time.time(),
        }


def _unpack(peer: Peer, count: int) -> dict[str, Any]:
    """Read a list of files, or changes to one: `{"rows", "gone"}`."""
    if not count:
        return {"rows": [], "gone": []}
    packed = bytearray()
    while len(packed) < count:
        piece = peer.read_some(count - len(packed))
        if not piece:
            raise Gone
        packed += piece
    try:
        listed: dict[str, Any] = loads(zlib.decompress(packed))
    except (zlib.error, ValueError) as exc:
        raise AgentError(f"the list of files arrived damaged: {exc}") from exc
    return listed


def _sweep(incoming: Path, heartbeat: Callable[[], None]) -> None:
    """Remove the leftovers of interrupted dispatches. The lock ensures that no dispatch is running."""
    for leftover in incoming.iterdir():
        with suppress(OSError):
            delete(leftover, heartbeat)


PATH_BYTES = 4095  # of Linux, without the terminating zero
CHARACTER_BYTES = 4  # at most


def check_lengths(root: Path, entries: Iterable[Entry], above: str) -> None:
    """Raise AgentError for a path that cannot be created: `above`, below which all are made, counts too."""
    name_bytes = os.pathconf(root, "PC_NAME_MAX")
    left = PATH_BYTES - len(os.fsencode(above)) - 1
    for entry in entries:
        if len(entry.path) * CHARACTER_BYTES <= min(name_bytes, left):
            continue
        path = os.fsencode(entry.path)
        longest = max(map(len, path.split(b"/")))
        if longest > name_bytes:
            problem = f"it has a name of {longest} bytes, and the file system of {root} allows {name_bytes}"
            hint = "shorten the name, or set ROOT_DIR to another file system"
        elif len(path) > left:
            problem = f"it has {len(path)} bytes, and {left} are left below {root}"
            hint = "shorten the path, or set ROOT_DIR to a shorter one"
        else:
            continue
        raise AgentError(f"the path {shortened(described(entry.path))!r} is too long: {problem}", hint=hint)
