"""The tree that a node builds: the announced one, inside its directory, or nothing."""

from __future__ import annotations

import hashlib
import io
import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterctl.agent.dispatch.in_place import changed
from clusterctl.agent.dispatch.staging import Staging
from clusterctl.agent.node.content import LocalCopy, stamp_of
from clusterctl.common.errors import AgentError, Gone
from clusterctl.common.paths import RESERVED
from clusterctl.common.safe_json import dumps
from clusterctl.common.seal import listing, read_seal
from clusterctl.common.tree import DIRECTORY, END, FILE, HEADER, LINK, ByteReader, Entry, check, decode, leads_outside

T = 1_700_000_000_123_456_789


def file(path: str, data: bytes = b"", mode: int = 0o644) -> Entry:
    return Entry(path, FILE, mode, T, len(data), hashlib.sha256(data).hexdigest())


def directory(path: str, mode: int = 0o755) -> Entry:
    return Entry(path, DIRECTORY, mode, T)


def link(path: str, target: str) -> Entry:
    return Entry(path, LINK, 0o777, T, target=target)


def built(place: Path, entries: list[Entry], data: bytes = b"") -> Path:
    """Build a tree from these entries and their files' bytes."""
    parts = []
    for entry in entries:
        if entry.kind == FILE:
            piece, data = data[: entry.size], data[entry.size :]
            parts += [HEADER.pack(bytes.fromhex(entry.digest), entry.size), piece]
    work = Staging(place / "new", entries, changed({}, entries), in_place=False)
    work.begin()
    work.take(ByteReader(io.BytesIO(b"".join([*parts, HEADER.pack(bytes(32), END)])).read, compressed=False), {})
    work.copy({})
    work.finish({"node": 0, "nodes": 1, "tree": "t", "source": "s"}, dumps(entries))
    assert read_seal(str(place / "new/tree")) == ("t:s:0:1", listing(str(place / "new/tree")))
    return place / "new/tree"


HOSTILE = {
    "an absolute path": [file("/etc/passwd")],
    "a path that goes up": [file("../x")],
    "a path through a dot": [file("./x")],
    "an empty path": [file("")],
    "a slash at the end": [directory("a/")],
    "a NUL in a path": [file("a\0b")],
    "a NUL in a link": [link("a", "b\0c")],
    "a path through a link": [link("a", "b"), directory("b"), file("a/x")],
    "a path through a file": [file("a"), file("a/x")],
    "a directory that is not there": [file("a/x")],
    "a path twice": [file("a"), file("a")],
    "a link over a directory": [directory("a"), link("a", "b")],
    "an absolute link": [link("a", "/etc/passwd")],
    "a link that goes up too far": [directory("a"), link("a/b", "../../x")],
    "a link out and back in": [link("a", "x/../../top/x")],
    "an empty link": [link("a", "")],
    "a device": [Entry("a", "c", 0o644, T)],
    "a named pipe": [Entry("a", "p", 0o644, T)],
    "no kind at all": [Entry("a", "", 0o644, T)],
    "a setuid file": [file("a", mode=0o4755)],
    "a setgid directory": [directory("a", 0o2755)],
    "a negative mode": [file("a", mode=-1)],
    "a negative size": [Entry("a", FILE, 0o644, T, -1)],
}


@pytest.mark.parametrize("entries", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_list_is_refused(entries: list[Entry]) -> None:
    with pytest.raises(AgentError) as raised:
        decode(entries)
    assert raised.value.kind == "refused"


@pytest.mark.parametrize(
    "entries",
    [
        [directory("a"), directory("a/b"), link("a/b/up", ".."), link("out", "a/b/up/../../secret")],
        [directory("d"), link("d/here", "."), link("out", "d/here/../../x")],
    ],
)
def test_a_link_that_leads_outside_through_another_link_is_refused(entries: list[Entry]) -> None:
    with pytest.raises(AgentError):
        check(entries)


MALFORMED: list[Any] = [
    None,
    {"a": 1},
    [[]],
    [["a", "f", 420, T, 0, "", "", "more"]],
    [["a", "f", "rw", T]],
    [["a", "f", 420, T, "many"]],
    [None],
]


@pytest.mark.parametrize("rows", MALFORMED, ids=repr)
def test_a_malformed_list_is_refused_with_a_message(rows: Any) -> None:
    with pytest.raises(AgentError) as raised:
        decode(json.loads(json.dumps(rows)))
    assert raised.value.kind == "refused"


def test_a_tree_arrives_with_modes_times_links_and_empty_directories(tmp_path: Path) -> None:
    entries = [
        directory("empty", 0o700),
        directory("run"),
        file("run/go.sh", b"echo", 0o755),
        file("run/key", b"secret", 0o400),
        link("run/again", "go.sh"),
        link("here", "run/../run/go.sh")
        if not leads_outside("here", "run/../run/go.sh")
        else link("here", "run/go.sh"),
        link("broken", "not/there"),
        file("zero"),
        directory("closed", 0o500),
        file("closed/in", b"x"),
    ]
    top = built(tmp_path, decode(json.loads(json.dumps(entries))), b"echosecretx")
    for entry in entries:
        status = (top / entry.path).lstat()
        assert status.st_mtime_ns == entry.mtime_ns, entry
        if entry.kind != LINK:
            assert stat.S_IMODE(status.st_mode) == entry.mode, entry
    assert (top / "here").read_bytes() == b"echo"
    assert os.readlink(top / "broken") == "not/there"  # noqa: PTH115 - as a string
    assert list((top / "empty").iterdir()) == []


NAMES = ["a b", "it's", 'say "hi"', "new\nline", "-rf", "ünï", "日本", "\udcff\udc80", "tab\there", "*", "~", "$HOME"]


def test_odd_names_arrive_unchanged(tmp_path: Path) -> None:
    entries, contents = [], b""
    for number, name in enumerate(NAMES):
        entries += [directory(name), file(f"{name}/{name}", b"%d" % number)]
        contents += b"%d" % number
    top = built(tmp_path, decode(json.loads(json.dumps(entries))), contents)
    assert {path.name for path in top.iterdir()} - set(RESERVED) == set(NAMES)
    assert [[path.name for path in (top / name).iterdir()] for name in NAMES] == [[name] for name in NAMES]


def test_a_truncated_stream_is_noticed_and_the_incomplete_file_is_removed(tmp_path: Path) -> None:
    entry = file("a", b"12345")
    work = Staging(tmp_path / "new", [entry], [0], in_place=False)
    work.begin()
    header = HEADER.pack(bytes.fromhex(entry.digest), 5)
    with pytest.raises(Gone):
        work.take(ByteReader(io.BytesIO(header + b"123").read, compressed=False), {})
    assert not (tmp_path / "new/tree/a").exists()


def test_contents_that_differ_from_the_announced_ones_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(AgentError, match="'a' does not have the announced contents"):
        built(tmp_path, [file("a", b"right")], b"wrong")
    assert not (tmp_path / "new/tree/a").exists()


def test_identical_files_are_sent_once(tmp_path: Path) -> None:
    entries = [file("a", b"same"), file("b", b"same", 0o600)]
    work = Staging(tmp_path / "new", entries, [0, 1], in_place=False)
    work.begin()
    blob = HEADER.pack(bytes.fromhex(entries[0].digest), 4) + b"same" + HEADER.pack(bytes(32), END)
    work.take(ByteReader(io.BytesIO(blob).read, compressed=False), {})
    work.copy({})
    assert (tmp_path / "new/tree/b").read_bytes() == b"same"
    assert stat.S_IMODE((tmp_path / "new/tree/b").stat().st_mode) == 0o600


def test_leftovers_of_a_broken_dispatch_are_removed_even_from_a_read_only_directory(tmp_path: Path) -> None:
    left, entry = tmp_path / "left/a", file("a", b"same", 0o600)
    left.parent.mkdir()
    left.write_bytes(b"same")
    left.parent.chmod(0o500)
    work = Staging(tmp_path / "new", [entry], [0], in_place=False)
    work.begin()
    work.copy({entry.digest: LocalCopy(left, stamp_of(left.stat()), True, True)})
    left.parent.chmod(0o700)
    assert (tmp_path / "new/tree/a").read_bytes() == b"same"


PARTS = st.sampled_from(("a", "b", "..", ".", "", "up"))


@given(path=st.lists(st.sampled_from(("a", "b")), min_size=1, max_size=4), target=st.lists(PARTS, max_size=6))
def test_an_accepted_link_stays_inside_when_its_names_are_directories(path: list[str], target: list[str]) -> None:
    text = "/".join(target)
    if not leads_outside("/".join(path), text):
        top = "/top/of/tree"
        resolved = os.path.normpath("/".join([top, *path[:-1], text]))
        assert resolved == top or resolved.startswith(top + "/")
