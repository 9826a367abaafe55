"""Scanning a workspace: files are hashed only when necessary, never wrongly, and in any order with the same result."""

from __future__ import annotations

import hashlib
import os
import random
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from clusterctl.dispatch import digest_cache as caches
from clusterctl.dispatch import hashing
from clusterctl.dispatch.dispatch import source_of
from clusterctl.dispatch.workspace import Workspace, scan
from clusterctl.errors import ConfigError, RefusedError

OLD_NS = 10**18


@pytest.fixture
def top(tmp_path: Path) -> Path:
    """200 small files in directories, a large one, and one with a name that is not UTF-8."""
    top = tmp_path / "workspace"
    for i in range(200):
        path = top / f"d{i // 50}" / f"f{i}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"%d" % i)
    (top / os.fsdecode(b"not-utf8-\xff\xfe")).write_bytes(b"odd")
    (top / "large").write_bytes(bytes(9 << 20))
    (top / "link").symlink_to("d0/f1")
    return top


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let hashing happen an hour after the files were written."""
    now = hashing.time.time_ns
    monkeypatch.setattr(hashing.time, "time_ns", lambda: now() + 3600 * 10**9)


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of files that are opened for hashing."""
    opened: list[str] = []
    original = hashing._read

    def read(place: str, meter: hashing.Meter) -> hashing.Hashed:
        opened.append(place.rpartition("/")[2])
        return original(place, meter)

    monkeypatch.setattr(hashing, "_read", read)
    return opened


def digests(workspace: Workspace) -> dict[str, str]:
    return {entry.path: entry.digest for entry in workspace.entries if entry.kind == "f"}


def contents(top: Path) -> dict[str, str]:
    files = (path for path in top.rglob("*") if path.is_file() and not path.is_symlink())
    return {os.fspath(path.relative_to(top)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def test_a_scanned_workspace_has_the_hashes_and_the_counts_of_its_files(top: Path) -> None:
    workspace = scan(top)
    assert digests(workspace) == contents(top)
    assert workspace.files == 202
    assert workspace.bytes == sum(path.stat().st_size for path in top.rglob("*") if path.is_file()) - 1
    seen = {""}
    for entry in workspace.entries:
        assert entry.path.rpartition("/")[0] in seen
        seen.add(entry.path)


@pytest.mark.usefixtures("later")
def test_an_unchanged_file_is_not_read_again_unless_asked_to(top: Path, tmp_path: Path, read: list[str]) -> None:
    first = scan(top, cache=tmp_path / "cache")
    assert len(read) == 202
    read.clear()
    assert scan(top, cache=tmp_path / "cache") == first
    assert read == []
    assert scan(top, cache=tmp_path / "cache", rehash=True) == first
    assert len(read) == 202


@pytest.mark.usefixtures("later")
def test_only_changed_files_are_read_again(top: Path, tmp_path: Path, read: list[str]) -> None:
    scan(top, cache=tmp_path / "cache")
    status = (top / "d1/f60").stat()
    (top / "d1/f60").write_bytes(b"06")  # as long as before, and dated back
    os.utime(top / "d1/f60", ns=(status.st_mtime_ns, status.st_mtime_ns))
    (top / "d1/new").write_bytes(b"new")
    (top / "large").unlink()
    (top / "d0/f1").rename(top / "d0/f2")
    read.clear()
    workspace = scan(top, cache=tmp_path / "cache")
    assert sorted(read) == ["f2", "f60", "new"]
    assert digests(workspace) == contents(top)
    assert set(caches.load(caches.cache_path(tmp_path / "cache", top))) == set(contents(top))


def test_a_file_that_was_written_a_moment_ago_is_not_trusted(top: Path, tmp_path: Path, read: list[str]) -> None:
    scan(top, cache=tmp_path / "cache")
    os.utime(top / "d0/f1", ns=(OLD_NS, OLD_NS))  # its ctime is still recent
    read.clear()
    scan(top, cache=tmp_path / "cache")
    assert len(read) == 202


def cut(data: bytes) -> bytes:
    return data[: len(data) // 2]


def flip(data: bytes) -> bytes:
    return data[:-500] + bytes([data[-500] ^ 1]) + data[-499:]


def garbage(data: bytes) -> bytes:
    return random.Random(1).randbytes(len(data))


@pytest.mark.usefixtures("later")
@pytest.mark.parametrize("damage", [cut, flip, garbage])
def test_a_damaged_cache_is_ignored(top: Path, tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    first = scan(top, cache=tmp_path / "cache")
    place = caches.cache_path(tmp_path / "cache", top)
    whole = place.read_bytes()
    place.write_bytes(damage(whole))
    assert scan(top, cache=tmp_path / "cache") == first
    assert place.read_bytes() == whole


def test_a_cache_that_cannot_be_written_is_ignored(top: Path, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("")
    assert digests(scan(top, cache=tmp_path / "cache")) == contents(top)


def disturb(monkeypatch: pytest.MonkeyPatch, times: int, change: Callable[[], object]) -> None:
    """Run `change` between the two fstat calls on a file, for the first `times` reads."""
    original = os.fstat
    calls = iter(range(2 * times))

    def fstat(fd: int) -> os.stat_result:
        status = original(fd)
        if next(calls, 1) % 2 == 0:
            change()
        return status

    monkeypatch.setattr(hashing.os, "fstat", fstat)


def append(path: Path) -> None:
    with path.open("ab") as f:
        f.write(b"more")


def overwrite(path: Path) -> None:
    path.write_bytes(b"y" * path.stat().st_size)
    os.utime(path, ns=(OLD_NS, OLD_NS))


@pytest.mark.parametrize("change", [append, overwrite, lambda path: os.truncate(path, 1)], ids=["+", "=", "-"])
def test_a_file_that_changes_while_it_is_read_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[Path], None]
) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"x" * 100)
    disturb(monkeypatch, 1, lambda: change(path))
    workspace = scan(tmp_path)
    assert digests(workspace) == contents(tmp_path)
    assert (workspace.entries[0].size, workspace.entries[0].mtime_ns) == (path.stat().st_size, path.stat().st_mtime_ns)


def test_hashing_reports_the_bytes_of_the_files_that_are_read(top: Path) -> None:
    reports: list[tuple[int, int]] = []

    def report(done: int, total: int) -> None:
        reports.append((done, total))

    total = scan(top, report=report).bytes
    assert reports[-1] == (total, total)
    assert reports == sorted(reports)
    assert len(reports) > len(list(top.rglob("*")))  # the large file in pieces


def test_a_file_that_keeps_changing_is_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "train.log").write_bytes(b"x")
    disturb(monkeypatch, 2, lambda: append(tmp_path / "train.log"))
    with pytest.raises(RefusedError, match=r"'train\.log' in the workspace changed while it was being read"):
        scan(tmp_path)


def test_a_file_that_vanished_or_became_a_link_before_hashing_is_refused(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("f")
    with pytest.raises(RefusedError, match="'f' in the workspace changed"):
        list(hashing.hash_files(str(tmp_path), [("f", 1)]))
    with pytest.raises(RefusedError, match="'link' in the workspace changed"):
        list(hashing.hash_files(str(tmp_path), [("link", 1)]))


@pytest.fixture
def public() -> Iterator[Path]:
    """A directory for an ordinary account; as root, tests become `nobody`, since root can read everything."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        uid = os.geteuid()
        if uid == 0:
            os.chown(name, 65534, 65534)
            os.seteuid(65534)
        try:
            yield Path(name)
        finally:
            os.seteuid(uid)


@pytest.mark.parametrize("kind", ["file", "directory"])
def test_an_unreadable_path_is_named_with_a_hint(public: Path, kind: str) -> None:
    path = public / "secret"
    path.touch() if kind == "file" else path.mkdir()
    path.chmod(0)
    with pytest.raises(
        ConfigError, match=r"cannot read .*secret|cannot read the workspace: Permission.*secret"
    ) as info:
        scan(public)
    assert ".clusterctlignore" in str(info.value.hint)


def test_the_content_id_is_independent_of_the_order_and_differs_for_every_change(top: Path) -> None:
    workspace = scan(top)
    shuffled = list(workspace.entries)
    random.Random(0).shuffle(shuffled)
    names = {workspace.content, replace(workspace, entries=tuple(shuffled)).content}
    assert len(names) == 1
    first = workspace.entries[0]
    for change in ({"path": "x"}, {"mode": 0}, {"mtime_ns": 1}, {"size": 1}, {"digest": "0"}, {"target": "t"}):
        names.add(replace(workspace, entries=(first._replace(**change), *workspace.entries[1:])).content)
    names.add(replace(workspace, entries=workspace.entries[1:]).content)
    names.add(replace(workspace, entries=()).content)
    assert len(names) == 9


@pytest.mark.parametrize(
    ("target", "problem", "relative"),
    [
        ("{top}/d0/f1", "an absolute path, which the nodes do not have", "../d0/f1"),
        ("../../{name}/d0/f1", "a path through a directory outside the workspace", "../d0/f1"),
        ("../to-d0/../d2/f101", "a path with .. after a name", "../d2/f101"),
    ],
)
def test_a_link_that_stays_inside_but_must_be_relative_has_a_command_as_its_hint(
    top: Path, target: str, problem: str, relative: str
) -> None:
    (top / "to-d0").symlink_to("d0")
    link = top / "d1/a link"
    link.symlink_to(target.format(top=top, name=top.name))
    ends = os.path.realpath(link)
    with pytest.raises(RefusedError) as info:
        scan(top)
    assert problem in info.value.message
    assert "outside the workspace" not in info.value.message.replace("directory outside", "")
    assert info.value.hint == f"make it a relative link: ln -sfn {relative} '{link}'"
    subprocess.run(["sh", "-c", str(info.value.hint).partition(": ")[2]], check=True)
    assert os.path.realpath(link) == ends
    assert scan(top).files == 202


@pytest.mark.parametrize("target", ["/etc/passwd", "../d0/../../outside", "{top}x"])
def test_a_link_that_leads_outside_is_refused(top: Path, target: str) -> None:
    (top / "d1/link").symlink_to(target.format(top=top))
    with pytest.raises(RefusedError, match=r"'d1/link' in the workspace is a link to .*, outside the workspace"):
        scan(top)


def test_a_workspace_has_another_origin_in_each_job_of_a_scheduler(tmp_path: Path) -> None:
    """So jobs that begin at once in one ROOT_DIR neither share a job directory nor replace that of another."""
    workspace = Workspace(tmp_path, (), ())
    assert source_of(workspace) == source_of(workspace, None)
    assert len({source_of(workspace, job) for job in (None, "12", "13")}) == 3
