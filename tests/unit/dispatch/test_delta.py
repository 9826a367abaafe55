"""A dispatch leaves what a fresh copy would, however the workspace changed or the last one was interrupted."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from clusterctl.agent.dispatch import in_place
from clusterctl.agent.node import content
from clusterctl.common.safe_json import dumps
from clusterctl.common.seal import listing, read_seal, untouched_job, write_seal
from clusterctl.dispatch import Dispatched, Progress, dispatch, plan, scan
from clusterctl.errors import ClusterctlError
from support.trees import described
from unit.agent.nodes import PipeCluster, Pipes

NAMES = ("a", "b", "a.b", "ü n")


class Place:
    """A workspace, two nodes, and what was dispatched last."""

    def __init__(self, directory: Path, python: str = sys.executable) -> None:
        self.workspace = directory / "workspace"
        self.workspace.mkdir(parents=True)
        self.cache: Path | None = directory / "cache"
        self.cluster = PipeCluster(directory, python, RELAY="never")
        self.count = 0

    def dispatch(self, **options: Any) -> Dispatched:
        self.count += 1
        job = f"JOB20261121-{self.count:06d}"
        return dispatch(self.cluster, scan(self.workspace), Progress(), job, cache=self.cache, **options)

    def job_dirs(self, done: Dispatched) -> list[Path]:
        return [Path(outcome.get().dir) for outcome in done.outcomes]

    def assert_same(self, done: Dispatched) -> None:
        for directory in self.job_dirs(done):
            assert described(directory) == described(self.workspace)
            assert directory.name == done.job
        for node in self.cluster.nodes:
            assert list((self.cluster.home(node.id) / "clusterctl/.clusterctl/incoming").iterdir()) == []

    def jobs(self, node: int = 0) -> list[str]:
        return sorted(path.name for path in (self.cluster.home(node) / "clusterctl").glob("JOB*"))


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    made = Place(tmp_path)
    yield made
    assert made.cluster.left() == []


def change(top: Path, path: str, how: str, data: bytes) -> None:
    """Make one change that users make to a workspace."""
    target = top / path
    if not target.parent.is_dir() or any(parent.is_symlink() for parent in target.parents):
        return
    if target.is_dir() and not target.is_symlink():
        shutil.rmtree(target)
    else:
        target.unlink(missing_ok=True)
    if how == "file":
        target.write_bytes(data)
        target.chmod(0o600 if data[:1] < b"m" else 0o755)
    elif how == "directory":
        target.mkdir()
        target.chmod(0o700 + len(data) % 8)
    elif how == "link":
        target.symlink_to("a")


CHANGE = st.tuples(
    st.lists(st.sampled_from(NAMES), min_size=1, max_size=3).map("/".join),
    st.sampled_from(("file", "file", "directory", "link", "remove")),
    st.binary(max_size=3),
)
STEP = st.tuples(st.lists(CHANGE, max_size=6), st.sampled_from(("no", "no", "start", "forget", "stray")))


@settings(max_examples=3, deadline=None, suppress_health_check=list(HealthCheck))
@given(steps=st.lists(STEP, min_size=2, max_size=4))
def test_after_any_changes_every_node_equals_a_fresh_copy(
    tmp_path_factory: pytest.TempPathFactory, steps: list[Any]
) -> None:
    place = Place(tmp_path_factory.mktemp("delta"))
    for changes, between in steps:
        for path, how, data in changes:
            change(place.workspace, path, how, data)
        done = place.dispatch()
        place.assert_same(done)
        if between == "start":
            for directory in place.job_dirs(done):
                (directory / ".clusterctl/runs/0001").mkdir(exist_ok=True)
                (directory / "written-by-the-job").write_text("x")
        elif between == "forget":
            place.cache = place.cache.with_name(f"other{place.count}") if place.cache else None
        elif between == "stray":
            (place.job_dirs(done)[0] / "stray").write_text("x")


def test_an_unchanged_workspace_is_the_same_job_and_sends_nothing(place: Place) -> None:
    (place.workspace / "f").write_text("f")
    first, second = place.dispatch(), place.dispatch()
    assert first.job == second.job
    assert [outcome.get().kept for outcome in second.outcomes] == [True, True]


def test_an_edit_replaces_a_job_that_was_never_started(place: Place) -> None:
    (place.workspace / "f").write_text("f")
    (place.workspace / "g").write_bytes(random.Random(1).randbytes(100_000))
    place.dispatch()
    (place.workspace / "f").write_text("other")
    done = place.dispatch()
    place.assert_same(done)
    assert place.jobs() == [done.job]
    for outcome in done.outcomes:
        assert (outcome.get().files_received, outcome.get().bytes_copied) == (1, 0)
        assert outcome.get().bytes_sent < 1000


def test_a_started_job_is_kept_and_its_files_are_copied_not_sent(place: Place) -> None:
    (place.workspace / "g").write_bytes(random.Random(1).randbytes(100_000))
    first = place.dispatch()
    (place.job_dirs(first)[1] / ".clusterctl/runs/0001").mkdir()
    (place.workspace / "f").write_text("new")
    done = place.dispatch()
    place.assert_same(done)
    assert place.jobs() == [first.job, done.job]
    for outcome in done.outcomes:
        assert (outcome.get().files_received, outcome.get().bytes_copied) == (1, 100_000)
    (place.job_dirs(done)[0] / "g").write_bytes(b"")
    assert (place.job_dirs(first)[0] / "g").stat().st_size == 100_000


def test_rehash_detects_changes_that_timestamps_do_not_show(place: Place) -> None:
    (place.workspace / "f").write_text("good")
    done = place.dispatch()
    for directory in place.job_dirs(done):
        tree, _ = read_seal(str(directory))
        (directory / "f").write_text("evil")
        write_seal(str(directory), tree, listing(str(directory)))
    assert [outcome.get().kept for outcome in place.dispatch().outcomes] == [True, True]
    again = place.dispatch(rehash=True)
    assert [(path / "f").read_text() for path in place.job_dirs(again)] == ["good", "good"]


def test_a_job_that_was_started_on_one_node_only_is_followed_by_a_new_one_on_all(place: Place) -> None:
    (place.workspace / "f").write_text("f")
    first = place.dispatch()
    (place.job_dirs(first)[1] / ".clusterctl/runs/0001").mkdir()
    second = place.dispatch()
    assert second.job != first.job
    assert [outcome.get().kept for outcome in second.outcomes] == [False, False]
    assert all(first.job in place.jobs(node) for node in (0, 1))
    place.assert_same(second)


@pytest.mark.parametrize("how", ["edit", "stray", "run", "incoming", "younger job", "cut seal", "reboot"])
def test_a_job_that_was_touched_in_any_way_is_no_longer_untouched(place: Place, how: str) -> None:
    (place.workspace / "f").write_text("f")
    done = place.dispatch()
    directory = place.job_dirs(done)[0]
    root, tree = str(directory.parent), read_seal(str(directory))[0]
    (mark,) = (directory / ".clusterctl").glob("verified-*")
    assert untouched_job(root, done.job, tree, mark.name) == str(directory)
    assert untouched_job(root, done.job, tree + "0", mark.name) == ""
    {
        "edit": lambda: (directory / "f").write_text("g"),
        "stray": (directory / "stray").touch,
        "run": (directory / ".clusterctl/runs/0001").mkdir,
        "incoming": (directory.parent / ".clusterctl/incoming/x").mkdir,
        "younger job": (directory.parent / (done.job + "-2")).mkdir,
        "cut seal": lambda: os.truncate(directory / ".clusterctl/seal", 10),
        "reboot": lambda: mark.rename(mark.with_name("verified-before")),
    }[how]()
    assert untouched_job(root, done.job, tree, mark.name) == ""


def test_a_plan_lists_changes_and_makes_none(place: Place) -> None:
    (place.workspace / "f").write_text("f")
    (place.workspace / "g").write_text("g")
    done = place.dispatch()
    (place.workspace / "f").write_text("other")
    (place.workspace / "g").unlink()
    planned = [outcome.get() for outcome in plan(place.cluster, scan(place.workspace), Progress(), cache=place.cache)]
    assert [([entry.path for entry in p.send], p.delete) for p in planned] == [(["f"], ["g"])] * 2
    assert place.jobs() == [done.job]
    assert [(path / "f").read_text() for path in place.job_dirs(done)] == ["f", "f"]


def test_a_dispatch_to_some_of_the_nodes_completes_the_last_one(place: Place) -> None:
    (place.workspace / "f").write_text("f")
    done = place.dispatch()
    shutil.rmtree(place.job_dirs(done)[1])
    whole = place.cluster.nodes
    place.cluster.nodes = whole[1:]
    again = place.dispatch()
    assert again.job == done.job
    assert described(place.job_dirs(again)[0]) == described(place.workspace)
    (place.workspace / "f").write_text("other")
    with pytest.raises(ClusterctlError, match="has changed since then"):
        place.dispatch()
    place.cluster.nodes = whole


class Killing(Pipes):
    """Kills its agent after `left` bytes have been sent to it."""

    left = 0

    def write(self, data: bytes, stall_s: float | None = None) -> None:
        if len(data) >= Killing.left:
            super().write(data[: Killing.left], stall_s)
            self.popen.kill()
            self.popen.wait()
        Killing.left -= len(data)
        super().write(data, stall_s)


def test_after_a_kill_at_any_point_of_the_stream_the_next_dispatch_is_correct(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = random.Random(7)
    for number in range(3):
        (place.workspace / f"f{number}").write_bytes(chance.randbytes(20_000))
        (place.workspace / "changes").write_text(str(number))
        Killing.left = chance.choice([50, 20_000, 30_000]) + 15_000  # boot and request come first
        with monkeypatch.context() as patched:
            patched.setattr("unit.agent.nodes.Pipes", Killing)
            with contextlib.suppress(ClusterctlError):
                place.dispatch()
        place.assert_same(place.dispatch())


class Killed(BaseException):
    """An exception that no code handles."""


def change_every_way(workspace: Path) -> None:
    """Edit, remove, and turn entries from one kind into another; leave one as it is."""
    (workspace / "edited").write_text("anew")
    (workspace / "gone").unlink()
    shutil.rmtree(workspace / "becomes-link")
    (workspace / "becomes-link").symlink_to("pointed-at")
    for path, how in (("becomes-directory", "directory"), ("becomes-file", "file"), ("link", "link")):
        change(workspace, path, how, b"data")


def fill_for_every_way(workspace: Path) -> None:
    for name in ("kept", "edited", "gone", "becomes-directory"):
        (workspace / name).write_text(name)
    for name in ("becomes-file", "becomes-link", "pointed-at"):  # old contents must not show through the link
        (workspace / name).mkdir()
        (workspace / name / "inner").write_text(name)


def killed_at(cut: int, work: Callable[[], None]) -> bool:
    """Run `work` and kill it at its `cut`th change; return True if it finished before that."""
    count = 0
    with pytest.MonkeyPatch.context() as patched:
        for name in ("replace", "rename", "unlink", "mkdir", "symlink", "chmod", "utime", "rmdir"):
            real = getattr(os, name)

            def counting(*args: Any, real: Any = real, **options: Any) -> Any:
                nonlocal count
                count += 1
                if count == cut:
                    raise Killed
                return real(*args, **options)

            patched.setattr(os, name, counting)
        try:
            work()
        except Killed:
            return False
    return True


def test_an_in_place_update_interrupted_anywhere_is_completed_by_recovery(tmp_path: Path) -> None:
    place = Place(tmp_path)
    fill_for_every_way(place.workspace)
    done = place.dispatch()
    before = place.job_dirs(done)[0].parent
    change_every_way(place.workspace)
    for cut in range(1, 60, 2):
        root = Path(shutil.copytree(before, tmp_path / str(cut), symlinks=True))
        staging = root / ".clusterctl/incoming/staged"
        (staging / "new").mkdir(parents=True)
        entries = sorted(scan(place.workspace).entries, key=lambda entry: entry.path.replace("/", "\0"))
        base = {row.entry.path: row for row in content.read_manifest(root / done.job) or ()}
        for number in in_place.changed(base, entries):
            shutil.copy2(place.workspace / entries[number].path, staging / "new" / str(number))
        record = {"job": "JOB20261121-999999", "node": 0, "nodes": 1, "tree": "t", "source": "s"}
        change = partial(in_place.change, entries=entries, base=base)
        update = partial(in_place.supersede, root, staging, done.job, record, dumps(entries), change)
        finished = killed_at(cut, update)
        in_place.recover(root)
        names = [path.name for path in root.glob("JOB*")]
        if names == [done.job]:  # interrupted before the journal was written: nothing has happened
            assert described(root / done.job) != described(place.workspace)
            assert cut < 5
        else:
            assert names == [record["job"]]
            assert described(root / names[0]) == described(place.workspace)
        if finished:
            break
    assert finished
    assert cut > 12, "the interruptions hit real changes"
