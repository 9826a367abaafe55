"""A tree under construction: received bytes are hashed and written once, others are copied from local files."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Callable

from clusterctl.agent.dispatch.in_place import finish_directory, make_link, seal
from clusterctl.agent.node.content import TORN, LocalCopy, Row, Stamp, copy_file, lists_of, mark_verified, stamp_of
from clusterctl.common.errors import AgentError
from clusterctl.common.files import write_all
from clusterctl.common.paths import META, JobPaths
from clusterctl.common.safe_json import dumps
from clusterctl.common.shards import described
from clusterctl.common.tree import COPY_BYTES, DIRECTORY, DISPATCH_LATER, END, HEADER, LINK, ByteReader, Entry

LARGE = 8 << 20  # from this size on, an interrupted file is resumed


class Staging:
    """A tree under construction: all of it in `tree/`, or, to change one in place, only the new files in `new/`."""

    def __init__(
        self,
        path: Path,
        entries: list[Entry],
        numbers: Iterable[int],
        *,
        in_place: bool,
        torn: dict[str, Path] | None = None,
        heartbeat: Callable[[], None] = lambda: None,
    ) -> None:
        """`numbers`: the files of `entries` to be made. `torn`: by digest, the paths of files received in part before.

        `heartbeat` is called periodically while nothing is read from the stream.
        """
        self._path = path
        self._heartbeat = heartbeat
        self._torn = dict(torn or {})
        self._entries = entries
        self._stamps: dict[int, Stamp] = {}
        self._wanted: dict[str, list[int]] = {}
        self.files_received = self.bytes_received = self.bytes_copied = 0
        self._in_place = in_place
        for number in numbers:
            self._wanted.setdefault(entries[number].digest, []).append(number)

    def begin(self) -> None:
        """Create all directories."""
        self._path.mkdir(0o700)
        mark_verified(self._path)
        (self._path / ("new" if self._in_place else "tree")).mkdir(0o700)
        if not self._in_place:
            (self._path / "tree" / META).mkdir(0o700)
            for entry in self._entries:
                if entry.kind == DIRECTORY:
                    (self._path / "tree" / entry.path).mkdir(0o700)

    def _name(self, number: int) -> str:
        return f"new/{number}" if self._in_place else f"tree/{self._entries[number].path}"

    def has(self, number: int) -> bool:
        return number in self._stamps

    def torn(self) -> dict[str, int]:
        """Return the bytes received so far, by digest, of large files that did not arrive whole."""
        lacking = (digest for digest, numbers in self._wanted.items() if not self.has(numbers[0]))
        return {digest: self._torn[digest].stat().st_size for digest in lacking if digest in self._torn}

    def take(self, stream: ByteReader, resume: dict[str, int], *, strict: bool = True) -> None:
        """Receive blobs until their end; for the files in `resume`, only the bytes after that offset.

        Raises AgentError for a blob that was not requested, or does not match its digest. If not `strict`, such blobs
        are skipped. A mismatch of a resumed file is never an error: its local beginning may be wrong, and the whole
        file is missing then.
        """
        with (self._path / "arrived").open("ab", buffering=0) as arrived:
            while True:
                digest, size = HEADER.unpack(stream.exactly(HEADER.size))
                if size == END:
                    return
                numbers = self._wanted.get(digest.hex())
                offset = resume.get(digest.hex(), 0)
                if numbers is None or size + offset != self._entries[numbers[0]].size or self.has(numbers[0]):
                    if strict:
                        raise AgentError(
                            "the control machine sent bytes that were not requested", hint="dispatch again"
                        )
                    stream.skip(size)
                    continue
                number = numbers[0]
                if not self._write(number, offset, stream):
                    if strict and not offset:
                        raise _other_contents(self._entries[number])
                    continue
                self.files_received += 1
                self.bytes_received += size
                arrived.write(dumps([digest.hex(), self._name(number), self._stamps[number]]) + b"\n")

    def _write(self, number: int, offset: int, stream: ByteReader) -> bool:
        """Write a file from the stream. Return True if the bytes match the digest; others are not kept."""
        entry = self._entries[number]
        name = self._path / self._name(number)
        path = self._path / f"{TORN}{entry.digest}" if entry.size >= LARGE else name
        try:
            fd = self._opened(entry, path, offset)
            try:
                digest = hashlib.sha256()
                for piece in self._beginning(fd, offset):
                    digest.update(piece)
                left = entry.size - offset
                while left:
                    data = stream.some(left)
                    write_all(fd, data)
                    digest.update(data)
                    left -= len(data)
                right = digest.hexdigest() == entry.digest
                if right and path != name:
                    path.rename(name)
                    del self._torn[entry.digest]
                if right:
                    self._set_metadata(fd, number)
            finally:
                os.close(fd)
        except BaseException:  # the stream ended, or the relay broke: missing files are sent directly
            if path == name:
                path.unlink(missing_ok=True)  # it may not have been created
            raise
        if not right:
            path.unlink()
            self._torn.pop(entry.digest, None)
        return right

    def _opened(self, entry: Entry, path: Path, offset: int) -> int:
        """Open a new file, or a torn one with its first `offset` bytes. The caller closes the descriptor."""
        if entry.size < LARGE:
            return self._create(path)
        torn = self._torn.get(entry.digest)
        if torn is None:
            self._torn[entry.digest] = path
            return self._create(path)
        if torn != path:
            torn.rename(path)
            self._torn[entry.digest] = path
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        os.ftruncate(fd, offset)
        return fd

    def _beginning(self, fd: int, count: int) -> Iterator[bytes]:
        """Yield the first bytes of a file, and leave its position after them."""
        while count:
            data = os.read(fd, min(count, COPY_BYTES))
            if not data:
                raise AgentError("a partly received file became shorter", hint="dispatch again")
            yield data
            count -= len(data)
            self._heartbeat()

    def _create(self, path: Path) -> int:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)

    def _set_metadata(self, fd: int, number: int) -> None:
        entry = self._entries[number]
        os.fchmod(fd, entry.mode)
        os.utime(fd, ns=(entry.mtime_ns, entry.mtime_ns))
        self._stamps[number] = stamp_of(os.fstat(fd))

    def copy(self, sources: dict[str, LocalCopy]) -> None:
        """Copy all files that were not sent from their sources on this node."""
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

    def _own(self, number: int) -> LocalCopy:
        return LocalCopy(self._path / self._name(number), self._stamps[number], False, True)

    def _copy(self, number: int, source: LocalCopy) -> None:
        entry, path = self._entries[number], self._path / self._name(number)
        moved = source.movable and _moved(source.path, path)
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW) if moved else self._create(path)
        try:
            if not moved:
                copy_file(source, entry.size, fd, self._heartbeat)
                self.bytes_copied += entry.size
            self._set_metadata(fd, number)
        finally:
            os.close(fd)

    def finish(self, record: dict[str, Any], listed: bytes) -> None:
        """Create the links, set the directories' times, and write our own files. `listed` is the entries as JSON."""
        tree = self._path / "tree"
        for entry in self._entries:
            if entry.kind == LINK:
                make_link(tree / entry.path, entry)
        for entry in reversed(self._entries):  # children first: making a child changes its directory's time
            if entry.kind == DIRECTORY:
                finish_directory(tree / entry.path, entry)
        rows = [Row(entry, self._stamps.get(number)) for number, entry in enumerate(self._entries)]
        seal(JobPaths(tree), record, lists_of(rows, listed))


def _moved(source: Path, path: Path) -> bool:
    """Move a file. Return False if that failed: its directory may be read-only already."""
    try:
        source.rename(path)
    except PermissionError:
        return False
    return True


def _other_contents(entry: Entry) -> AgentError:
    message = f"{described(entry.path)!r} does not have the announced contents"
    return AgentError(message, hint=DISPATCH_LATER, changed=entry.path)
