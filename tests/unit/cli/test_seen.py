"""The cache: what commands write, and what is read of a damaged one."""

from __future__ import annotations

import json
import os
import stat
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from clusterctl.cli import seen
from clusterctl.cli.seen import VERSION, SeenFile, SeenNames
from clusterctl.config import Host, from_values
from clusterctl.inventory import build

JOB, OLDER = "JOB20261125-153906", "JOB20261124-120000"
ODD_NAMES = ("two words", "it's", 'say "hi"', "$(touch pwned)", "`touch pwned`", "café", "x=1", "b\\slash")
NO_NAMES = ("", "new\nline", "tab\tab", "bell\x07", "\x1b[2J", "\u202eright", "-rf", "x" * 201, 3, None, ["a"])


class Cache:
    """The file about `home`/conf.py in the cache of a user."""

    def __init__(self, home: Path) -> None:
        self.directory = home / "cache"
        self.conf = home / "conf.py"
        self.path = SeenFile(self.directory, self.conf).path
        self.path.parent.mkdir(parents=True)

    def write(self, nodes: object, jobs: object) -> None:
        about = {"v": VERSION, "conf": str(self.conf.resolve()), "nodes": nodes, "jobs": jobs}
        self.path.write_text(json.dumps(about))


def node(number: int, *tags: object) -> dict[str, Any]:
    return {"label": f"node{number}", "host": f"10.0.0.{number}", "name": "", "tags": list(tags)}


def job(state: str = "", tags: tuple[object, ...] = (), **names: object) -> dict[str, Any]:
    return {"state": state, "runs": {number.strip("_"): name for number, name in names.items()}, "tags": list(tags)}


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(tmp_path)


def writer(cache: Cache, *, of_some: bool = False) -> SeenFile:
    return SeenFile(cache.directory, cache.conf, of_some=of_some)


def read(cache: Cache) -> SeenNames:
    return writer(cache).read()


def learn(cache: Cache, *documents: dict[str, Any]) -> dict[str, Any]:
    """Give the documents of one command to a writer, and return what is known of jobs."""
    one = writer(cache)
    for document in documents:
        one.document(document)
    return read(cache).jobs


def test_nodes_are_kept_with_names_and_tags_in_a_private_file(cache: Cache) -> None:
    hosts = [Host("root@10.0.0.1:2222", name="head", tags=("big",)), "10.0.0.2"]
    writer(cache).nodes(build(from_values({"HOSTS": hosts})))
    assert read(cache).nodes == [
        {"label": "node0", "host": "10.0.0.1", "name": "head", "tags": ["big"]},
        {"label": "node1", "host": "10.0.0.2", "name": "", "tags": []},
    ]
    assert stat.S_IMODE(cache.path.stat().st_mode) == 0o600
    assert list(cache.path.parent.iterdir()) == [cache.path]


def test_jobs_runs_and_names_are_learned_from_what_commands_report(cache: Cache) -> None:
    learn(cache, {"job": OLDER, "nodes": []})  # dispatch
    learn(cache, {"job": JOB, "run": "0001", "name": "first", "state": "starting", "members": [0]})
    assert learn(cache, {"job": JOB, "run": "0002", "state": "running"}) == {
        OLDER: job(),
        JOB: job("running", _1="first", _2=""),
    }
    learn(cache, {"job": JOB, "survivors": 0, "run": "0002", "nodes": []})  # stop
    assert read(cache).jobs[JOB]["state"] == "stopped"
    learn(cache, {"job": JOB, "run": "0002", "model": "x/model.safetensors", "tag": "pass-00003"})  # collect
    assert read(cache).jobs[JOB]["tags"] == ["pass-00003"]
    failed = {"job": JOB, "run": "0002", "state": "failed"}
    assert learn(cache, {"error": {"details": failed}})[JOB]["state"] == "failed"


def test_models_are_learned_from_the_events_of_a_run(cache: Cache) -> None:
    event = {"event": "saved", "complete": True, "tag": "pass-00000"}
    learn(cache, event, {"job": JOB, "run": "0001"}, event, {**event, "checkpoint": True, "tag": "step-1"})
    assert read(cache).jobs[JOB]["tags"] == ["pass-00000"]


def test_a_list_of_all_jobs_replaces_what_was_known_and_that_of_some_nodes_adds_to_it(cache: Cache) -> None:
    gone, listed = {"job": OLDER, "nodes": []}, {"job": JOB, "state": "succeeded", "runs": [{"run": "0001"}]}
    learn(cache, gone)
    assert list(learn(cache, {"jobs": [listed], "error": {"details": {"nodes": []}}})) == [OLDER, JOB]
    writer(cache, of_some=True).document({"jobs": [listed]})
    assert list(read(cache).jobs) == [OLDER, JOB]
    assert list(learn(cache, {"jobs": [listed]})) == [JOB]


def test_pruned_jobs_are_forgotten_once_they_are_removed(cache: Cache) -> None:
    old = {"jobs": [{"job": OLDER, "runs": 1, "keep": None}, {"job": JOB, "runs": 2, "keep": "newest"}]}
    learn(cache, {"job": OLDER, "nodes": []}, {"job": JOB, "nodes": []})
    assert list(learn(cache, {**old, "removed": False})) == [OLDER, JOB]
    writer(cache, of_some=True).document({**old, "removed": True})
    assert list(read(cache).jobs) == [OLDER, JOB]
    assert list(learn(cache, {**old, "removed": True})) == [JOB]


@pytest.mark.parametrize(
    "document",
    [
        {"job": "JOB...", "processes": []},  # a plan
        {"job": "../etc", "run": "0001"},
        {"job": 3, "run": "0001"},
        {"jobs": [{"job": "$(x)", "runs": []}, {"jobs": 1}, 7]},
        {"error": {"details": []}},
        {"error": None},
        {"nodes": []},
    ],
    ids=str,
)
def test_what_names_no_job_on_the_nodes_is_not_learned(cache: Cache, document: dict[str, Any]) -> None:
    assert learn(cache, document) == {}


def test_names_that_a_shell_or_a_terminal_could_take_for_something_else_are_dropped(cache: Cache) -> None:
    cache.write([node(0, *ODD_NAMES, *NO_NAMES)], {JOB: job("", NO_NAMES, _1="new\nline", _2="fine", x="x")})
    assert read(cache).nodes[0]["tags"] == list(ODD_NAMES)
    assert read(cache).jobs == {JOB: job("", (), _1="", _2="fine")}


@pytest.mark.parametrize(
    "text",
    [
        *("", "{", "[]", "null", '"text"', "[" * 100_000, "\udcff", '{"v": 1}', '{"v": 2, "nodes": [], "jobs": {}}'),
        '{"v": 1, "conf": "another", "nodes": [{"label": "node0"}]}',
        f'{{"v": 1, "padding": "{"x" * seen.MOST_BYTES}"}}',
    ],
    ids=lambda text: text[:30],
)
def test_a_damaged_file_is_no_file_and_the_next_command_replaces_it(cache: Cache, text: str) -> None:
    cache.path.write_bytes(text.encode(errors="surrogateescape"))
    assert (read(cache).nodes, read(cache).jobs) == ([], {})
    assert list(learn(cache, {"job": JOB, "nodes": []})) == [JOB]


@pytest.mark.parametrize("value", [None, 1, "text", [1, None, {"label": 3}], {"": [], "job": 1, "x": {"runs": 3}}])
def test_a_malformed_value_is_dropped(cache: Cache, value: object) -> None:
    cache.write(value, value)
    assert read(cache).nodes == []
    assert all(one == job() for one in read(cache).jobs.values())


def test_the_cache_is_bounded_and_keeps_the_newest(cache: Cache) -> None:
    jobs = {f"JOB20261125-{number:06d}": job("", (), _1="name") for number in range(seen.MOST_JOBS + 5)}
    cache.write([node(number) for number in range(seen.MOST_NODES + 5)], jobs)
    learn(cache, {"job": JOB, "nodes": []})
    assert len(read(cache).nodes) == seen.MOST_NODES
    assert list(read(cache).jobs) == [*jobs, JOB][-seen.MOST_JOBS :]
    assert cache.path.stat().st_size < seen.MOST_BYTES


def test_a_full_cache_is_still_read(cache: Cache) -> None:
    """Of the longest names the writer keeps fewer, rather than write a file that no reader takes."""
    tags = [f"{number:03d}" + "x" * 190 for number in range(seen.MOST_TAGS)]
    cache.write([node(number) for number in range(10)], {})
    inventory = SimpleNamespace(
        nodes=[
            SimpleNamespace(label=f"node{n}", host=SimpleNamespace(hostname="h", name=None), tags=tags)
            for n in range(seen.MOST_NODES)
        ]
    )
    writer(cache).nodes(inventory)  # type: ignore[arg-type]
    assert cache.path.stat().st_size <= seen.MOST_BYTES
    assert len(read(cache).nodes) > 100


def test_the_oldest_files_are_removed(cache: Cache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seen, "MOST_FILES", 3)
    for number in range(5):
        one = SeenFile(cache.directory, tmp_path / f"{number}.py")
        one.document({"job": JOB, "nodes": []})
        (newest,) = (path for path in cache.path.parent.iterdir() if path.stat().st_mtime > 1000)
        os.utime(newest, (number, number))
    confs = {Path(json.loads(path.read_text())["conf"]).name for path in cache.path.parent.iterdir()}
    assert confs == {"2.py", "3.py", "4.py"}


def test_a_cache_that_cannot_be_written_is_no_error(cache: Cache) -> None:
    cache.path.parent.rmdir()
    cache.path.parent.write_text("a file")
    learn(cache, {"job": JOB, "nodes": []})
    assert read(cache).jobs == {}


def test_readers_never_see_half_a_file(cache: Cache) -> None:
    cache.write([node(0)], {JOB: job()})
    is_over = threading.Event()
    failures: list[SeenNames] = []

    def look() -> None:
        while not is_over.is_set():
            now = read(cache)
            if JOB not in now.jobs:
                failures.append(now)

    readers = [threading.Thread(target=look) for _ in range(2)]
    for reader in readers:
        reader.start()
    for number in range(1, 100):
        learn(cache, {"job": JOB, "run": f"{number:04d}", "name": "n" * number})
    is_over.set()
    for reader in readers:
        reader.join()
    assert failures == []
