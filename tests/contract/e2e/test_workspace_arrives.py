"""A dispatch preserves names, modes, times and links, and refuses links that point outside."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from support.site import Site
from support.trees import described

ODD_NAMES = [
    "with space",
    "quote'\"",
    "new\nline",
    "-leading",
    "ünïcödé",
    "semi;$(x)`y`",
    "*",
    "~",
    "back\\slash",
    "...",
]


def make_odd_tree(top: Path) -> None:
    top.mkdir()
    for number, name in enumerate(ODD_NAMES):
        (top / name).write_text(f"{name} {number}")
        os.utime(top / name, ns=(10**18 + number, 10**18 + number))
    (Path(os.fsdecode(os.fsencode(top) + b"/not-utf8-\xff\xfe"))).write_bytes(b"\0\xff" * 1000)
    (top / "empty directory" / "inside").mkdir(parents=True)
    (top / "empty file").touch()
    (top / "tool").write_text("#!/bin/sh\n")
    (top / "tool").chmod(0o755)
    (top / "secret").write_text("s")
    (top / "secret").chmod(0o400)
    (top / "sub").mkdir()
    (top / "sub/up").symlink_to("../tool")
    (top / "sub/dangling").symlink_to("nothing/there")
    (top / "to-directory").symlink_to("sub")
    (top / "large").write_bytes(os.urandom(3 << 20))
    (top / "read-only directory").mkdir()
    (top / "read-only directory/f").write_text("f")
    (top / "read-only directory").chmod(0o555)


def test_a_workspace_arrives_unchanged(site: Site) -> None:
    top = site.directory / "odd"
    make_odd_tree(top)
    expected = described(top)
    document = site.ok("dispatch", str(top), "--json").json()
    for node in document["nodes"]:
        assert described(Path(node["dir"])) == expected
        assert Path(node["dir"], "nodefile").read_text() == f"{node['node']}\n"
        assert stat.S_IMODE(Path(node["dir"]).stat().st_mode) == 0o700
        assert stat.S_IMODE(Path(node["dir"]).parent.joinpath(".clusterctl").stat().st_mode) == 0o700


@pytest.mark.parametrize("target", ["/etc/passwd", "sub/../../outside"])
def test_a_link_that_points_outside_is_refused(site: Site, target: str) -> None:
    workspace = site.workspace("")
    (workspace / "link").symlink_to(target)
    before = len(site.ok("jobs", "--json").json()["jobs"])
    result = site.run("dispatch", str(workspace))
    assert result.code == 4
    assert "'link'" in result.err
    assert "outside" in result.err
    assert len(site.ok("jobs", "--json").json()["jobs"]) == before


def test_a_pipe_in_the_workspace_is_refused_not_waited_for(site: Site) -> None:
    workspace = site.workspace("")
    os.mkfifo(workspace / "pipe")
    result = site.run("dispatch", str(workspace), timeout_s=60)
    assert result.code == 4
    assert "'pipe'" in result.err


def test_caches_and_our_own_directories_are_not_sent(site: Site) -> None:
    workspace = site.workspace("")
    for name in (
        ".git/objects",
        "__pycache__",
        "pkg/__pycache__",
        ".venv/bin",
        "clusterctl-jobs/node0",
        "output/pass-00000",
        "log",
    ):
        (workspace / name).mkdir(parents=True)
        (workspace / name / "f").write_text("x")
    (workspace / "pkg/output").mkdir()
    node = site.ok("dispatch", str(workspace), "--json").json()["nodes"][0]
    arrived = {path.relative_to(node["dir"]).as_posix() for path in Path(node["dir"]).rglob("*")}
    assert {"train.py", "pkg/output"} <= arrived
    assert (
        not {".git", "__pycache__", ".venv", "clusterctl-jobs", "pkg/__pycache__", "output/pass-00000", "log/f"}
        & arrived
    )


def test_fewer_shards_than_trainers_are_a_warning(site: Site) -> None:
    workspace = site.workspace("", **{f"train.txt-0000{number}": "x" for number in range(2)})
    site.conf(SHARDS=["train.txt-*"])
    result = site.ok("dispatch", str(workspace))
    assert "only 2 shards, and the nodes of 2 of 4 trainers get none: trainers 2,3" in result.err
    assert "clusterctl split FILE --count 4" in result.err


def test_paths_that_are_too_long_are_cut_in_messages(site: Site) -> None:
    for argument in ("x" * 300, "/".join(["y" * 200] * 25)):
        result = site.run("dispatch", argument)
        assert (result.code, "File name too long" in result.err) == (2, True)
        assert len(result.err) < 300
    workspace = site.workspace("")
    make_deep(workspace, 5000)
    result = site.run("dispatch", str(workspace))
    assert (result.code, "a path in the workspace is too long: 'dddd" in result.err) == (2, True)
    assert len(result.err) < 500


def test_a_path_that_is_too_long_only_on_the_nodes_is_found_before_anything_is_sent(site: Site) -> None:
    workspace = site.workspace("")
    make_deep(workspace, 4080 - len(str(workspace)))
    site.conf(HOSTS=[f"{host}" for host in site.hosts], ROOT_DIR="~/" + "r" * 200)
    result = site.run("dispatch", str(workspace))
    assert result.code == 3
    assert "...ddd" in result.err
    assert "is too long: it has " in result.err
    assert "set ROOT_DIR to a shorter one" in result.err
    assert "failed@last" not in result.err
    assert max(map(len, result.err.splitlines())) < 600


def test_properties_that_are_not_kept_are_a_warning(site: Site) -> None:
    workspace = site.workspace("", tool="x", words="y")
    (workspace / "tool").chmod(0o4755)
    os.link(workspace / "words", workspace / "zwords")
    result = site.ok("dispatch", str(workspace), "--json")
    assert result.err.splitlines()[:2] == [
        "warning: setuid, setgid and sticky bits are not kept: tool",
        "warning: hard links arrive as separate files: zwords",
    ]
    arrived = Path(result.json()["nodes"][0]["dir"])
    assert stat.S_IMODE((arrived / "tool").stat().st_mode) == 0o755
    assert (arrived / "words").stat().st_nlink == 1


def make_deep(top: Path, length: int) -> None:
    """Make a directory whose path below `top` has this length, in steps that are short enough."""
    at = os.open(top, os.O_RDONLY)
    while length > 0:
        name = "d" * min(200, length)
        os.mkdir(name, dir_fd=at)
        below = os.open(name, os.O_RDONLY, dir_fd=at)
        os.close(at)
        at, length = below, length - len(name) - 1
    os.close(at)
