"""`.clusterctlignore` has the semantics of .gitignore, checked against git itself."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from clusterctl.dispatch.ignore import IGNORE_FILE, Ignored, parse
from clusterctl.dispatch.wildmatch import CLASSES
from clusterctl.dispatch.workspace import Workspace, scan
from clusterctl.errors import RefusedError

needs_git = pytest.mark.skipif(shutil.which("git") is None, reason="no git on this machine")

NAMES = [b"a", b"b", b"ab", b"b ", b"foo", b"foo.c", b"#x", b"!x", b"x]", b"-", b"\\", b"*", b"[a]", b"^"]
NAMES += [b"\xc3\xa9", b"\xff", b"n\nl", b"A", b"1", b"b\t"]
PIECES = [b"a", b"b", b"foo", b"/", b"/", b"*", b"**", b"**/", b"/**", b"?", b"[ab]", b"[!a]", b"[^b]", b"[a-c]"]
PIECES += [b"\\", b"\\*", b"\\ ", b" ", b"!", b"#", b".c", b"[[:alpha:]]", b"[]a]", b"[a\\]]", b"[", b"]", b"-"]
PIECES += [b"\xc3\xa9", b"\t", b"\r", b"***", b"[!]-a]", b"[a-]", b"[[:foo:]]", b"[[:a]", b"\\#", b"1", b"//"]

BYTES = [*range(1, ord("/")), *range(ord("/") + 1, 0x81), 0xA0, 0xE4, 0xFF]

patterns = st.tuples(
    st.sampled_from([b"", b"", b"!"]),
    st.lists(st.sampled_from(PIECES), min_size=1, max_size=5).map(b"".join),
    st.sampled_from([b"", b"", b"/"]),
).map(b"".join)
ignore_files = st.lists(patterns, min_size=1, max_size=5).map(b"\n".join)
paths = st.lists(st.sampled_from(NAMES), min_size=1, max_size=4).map(b"/".join)
trees = st.lists(paths, min_size=1, max_size=12, unique=True)


class Judge:
    """A git repository elsewhere, so that a tree holds nothing of git's own."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._git("init", "-q", "--bare", str(directory / "repository"))
        self.trees = 0

    def _git(self, *args: str, stdin: bytes = b"", ok: tuple[int, ...] = (0,)) -> bytes:
        env = {"PATH": os.environ["PATH"], "HOME": str(self.directory), "GIT_CONFIG_NOSYSTEM": "1"}
        done = subprocess.run(["git", *args], input=stdin, capture_output=True, env=env, check=False)
        assert done.returncode in ok, done.stderr
        return done.stdout

    def _in(self, top: Path) -> tuple[str, ...]:
        return ("-C", str(top), "--git-dir", str(self.directory / "repository"), "--work-tree", str(top))

    def tree(self) -> Path:
        self.trees += 1
        top = self.directory / f"tree{self.trees}"
        top.mkdir()
        return top

    def sent(self, top: Path) -> set[bytes]:
        """The files that git does not ignore."""
        listed = self._git(*self._in(top), "ls-files", "-o", "-z", f"--exclude-per-directory={IGNORE_FILE}")
        return set(filter(None, listed.split(b"\0")))

    def reasons(self, top: Path, ignored: tuple[Ignored, ...]) -> list[tuple[str, int, str]]:
        """Return (file, line, rule) as git reports them; the ignore files are also there as .gitignore."""
        stdin = b"".join(os.fsencode(one.path) + b"\0" for one in ignored)
        args = ("check-ignore", "-v", "-z", "--no-index", "--stdin")
        fields = os.fsdecode(self._git(*self._in(top), *args, stdin=stdin, ok=(0, 1))).split("\0")[:-1]
        sources, lines, rules = fields[::4], fields[1::4], fields[2::4]
        matches = zip(sources, lines, rules, strict=True)
        return [(source.replace(".gitignore", IGNORE_FILE), int(line), rule) for source, line, rule in matches]


@pytest.fixture(scope="module")
def judge(tmp_path_factory: pytest.TempPathFactory) -> Judge:
    return Judge(tmp_path_factory.mktemp("git"))


def make(top: Path, tree: list[bytes], ignores: dict[bytes, bytes]) -> None:
    """Create a tree; skip a path that cannot exist because its parent is a file."""
    for path in tree:
        write(top / os.fsdecode(path), path)
    for directory, data in ignores.items():
        for name in (IGNORE_FILE, ".gitignore"):
            write(top / os.fsdecode(directory) / name, data)


def write(path: Path, data: bytes) -> None:
    with contextlib.suppress(FileExistsError, NotADirectoryError, IsADirectoryError):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


def sent(workspace: Workspace) -> set[bytes]:
    return {os.fsencode(entry.path) for entry in workspace.entries if entry.kind == "f"}


@needs_git
@given(trees, st.dictionaries(st.one_of(st.just(b""), paths), ignore_files, min_size=1, max_size=3))
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_the_sent_files_and_the_reported_rules_are_those_of_git(
    judge: Judge, tree: list[bytes], ignores: dict[bytes, bytes]
) -> None:
    top = judge.tree()
    make(top, tree, ignores)
    workspace = scan(top)
    assert sent(workspace) == judge.sent(top)
    ours = [(one.source, one.line, one.rule) for one in workspace.ignored]
    assert ours == judge.reasons(top, workspace.ignored)
    shutil.rmtree(top)


@needs_git
def test_every_character_class_matches_the_same_bytes_as_in_git(judge: Judge) -> None:
    tree = [b"%s/x%c" % (name, byte) for name in CLASSES for byte in BYTES]
    rules = b"".join(b"/%s/x[[:%s:]]\n" % (name, name) for name in CLASSES)
    top = judge.tree()
    make(top, tree, {b"": rules})
    workspace = scan(top)
    assert sent(workspace) == judge.sent(top)
    assert len(workspace.ignored) > 400


@pytest.fixture
def tree(tmp_path: Path) -> Callable[..., Workspace]:
    def make_and_scan(*paths: str, **ignores: str) -> Workspace:
        top = tmp_path / "workspace"
        make(top, [path.encode() for path in paths], {})
        for directory, rules in ignores.items():
            (top / directory.replace("top", ".") / IGNORE_FILE).write_text(rules)
        return scan(top)

    return make_and_scan


def kept(workspace: Workspace) -> set[str]:
    return {entry.path for entry in workspace.entries if entry.kind == "f"} - {IGNORE_FILE, f"sub/{IGNORE_FILE}"}


def test_tool_caches_are_ignored_by_default_and_a_directory_called_data_is_not(tree: Callable[..., Workspace]) -> None:
    workspace = tree("data/a", "build/a", "lib/a", ".env", "sub/.git/HEAD", "sub/__pycache__/x", ".venv/bin/python")
    assert kept(workspace) == {"data/a", "build/a", "lib/a", ".env"}
    assert {(one.path, one.reason) for one in workspace.ignored} == {
        ("sub/.git", ".git (default)"),
        ("sub/__pycache__", "__pycache__ (default)"),
        (".venv", ".venv (default)"),
    }


def test_an_exclamation_mark_brings_a_default_back(tree: Callable[..., Workspace]) -> None:
    workspace = tree(".venv/bin/python", "sub/.git/HEAD", "sub/__pycache__/x", top="!.venv\n", sub="!/.git/\n")
    assert kept(workspace) == {".venv/bin/python", "sub/.git/HEAD"}


def test_names_reserved_for_the_job_directory_cannot_be_brought_back(tree: Callable[..., Workspace]) -> None:
    workspace = tree("log/a", "output/a", "nodefile", ".clusterctl/a", "sub/log/a", top="!log\n!/output\n!nodefile\n")
    assert kept(workspace) == {"sub/log/a"}
    assert {one.source for one in workspace.ignored} == {"reserved"}
    assert len(workspace.ignored) == 4


def test_an_ignored_path_names_its_rule_its_file_its_line_and_its_size(tree: Callable[..., Workspace]) -> None:
    workspace = tree("raw/a", "keep.bin", "sub/big.bin", top="# raw data\n\nraw/\n*.bin\n", sub="!big.*\nbig.bin\n")
    assert workspace.ignored == (
        Ignored("keep.bin", "*.bin", IGNORE_FILE, 4, len("keep.bin")),
        Ignored("raw", "raw/", IGNORE_FILE, 3, None),
        Ignored("sub/big.bin", "big.bin", f"sub/{IGNORE_FILE}", 2, len("sub/big.bin")),
    )
    assert workspace.ignored[1].reason == "raw/ (.clusterctlignore:3)"


def test_an_excluded_directory_is_not_entered(tree: Callable[..., Workspace], tmp_path: Path) -> None:
    deep = tmp_path / "workspace" / "huge"
    deep.mkdir(parents=True)
    os.mkfifo(deep / "refused if it were seen")
    assert kept(tree("a", top="huge\n!huge/a\n")) == {"a"}
    with pytest.raises(RefusedError, match="refused if it were seen"):
        tree("a", top="")


def test_a_byte_order_mark_and_windows_line_endings_are_not_part_of_a_rule() -> None:
    rules = list(parse(b"\xef\xbb\xbfa\r\nb \r\n\r\n#c\r\nd\\ ", "f"))
    assert [(rule.text, rule.line) for rule in rules] == [("a", 1), ("b", 2), ("d\\ ", 5)]
