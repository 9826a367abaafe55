"""The files of a job as they were dispatched, and the packages of a run."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from clusterctl.agent.node.content import Row, Stamp, lists_of, stamp_of, write_lists
from clusterctl.agent.operations import contents as operation
from clusterctl.agent.operations.contents import contents
from clusterctl.common.errors import AgentError
from clusterctl.common.files import write_json
from clusterctl.common.paths import JobPaths
from clusterctl.common.tree import DIRECTORY, FILE, LINK, Entry
from unit.agent.operations.test_logs import JOB, Listening
from unit.agent.specs import spec_json

NAMES = ("a.py", "data/b", "data/odd\udcff\x1b")
RUN = "0001"


def stamp(path: Path) -> Stamp:
    return stamp_of(path.lstat())


@pytest.fixture
def job(tmp_path: Path) -> JobPaths:
    made = JobPaths(tmp_path / JOB)
    made.run(RUN).dir.mkdir(parents=True)
    write_json(made.record, {"job": JOB})
    write_json(made.run(RUN).spec, spec_json())
    (made.dir / "data").mkdir()
    rows = [Row(Entry("data", DIRECTORY, 0o755, 1), None)]
    for name in NAMES:
        path = made.dir / name
        path.write_text(name, errors="surrogateescape")
        data = path.read_bytes()
        rows.append(Row(Entry(name, FILE, 0o644, 1, len(data), hashlib.sha256(data).hexdigest()), stamp(path)))
    (made.dir / "link").symlink_to("a.py")
    rows.append(Row(Entry("link", LINK, 0o777, 1, target="a.py"), None))
    write_lists(made.dir, "tree", lists_of(rows, b"[]"))
    return made


def ask(job: JobPaths, **request: Any) -> tuple[list[list[Any]], dict[str, Any]]:
    """Return the files of all messages, and the final answer."""
    with Listening() as listening:
        done = contents(job.dir.parent, {"ref": JOB, "run": RUN, **request}, listening.peer)
    return [row for message in listening.messages for row in message.get("files", ())], done


def test_files_and_links_are_listed_with_their_contents(job: JobPaths, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operation, "BATCH_FILES", 2)
    files, done = ask(job, list=True)
    assert [path for path, *_ in files] == [*NAMES, "link"]
    assert files[0] == ["a.py", 4, hashlib.sha256(b"a.py").hexdigest()]
    assert files[-1] == ["link", 0, "-> a.py"]
    none, summary = ask(job)
    assert (none, summary["digest"], summary["changed"]) == ([], done["digest"], 0)


def test_the_digest_changes_with_contents_and_not_with_times(job: JobPaths) -> None:
    _, before = ask(job)
    manifest = job.meta / "manifest"
    rows = json.loads(manifest.read_text())
    for row in rows:
        row[3] += 1000
    manifest.write_text(json.dumps(rows))
    assert ask(job)[1]["digest"] == before["digest"]
    rows[1][5] = "0" * 64
    manifest.write_text(json.dumps(rows))
    assert ask(job)[1]["digest"] != before["digest"]


def test_files_that_are_not_as_dispatched_are_counted(job: JobPaths) -> None:
    (job.dir / "a.py").write_text("other")
    (job.dir / "data/b").unlink()
    (job.dir / "new").write_text("of the program")
    assert ask(job)[1]["changed"] == 2


def test_packages_are_those_that_the_run_found_and_those_of_its_environment(job: JobPaths) -> None:
    assert ask(job)[1]["packages"] == {}
    venv = job.dir.parent / ".clusterctl/venvs/abc"
    venv.mkdir(parents=True)
    wheels = [["Some_Thing-1.5-py3-none-any.whl", "0" * 64, 9], ["numpy-2.0-cp311-cp311-linux.whl", "0" * 64, 9]]
    write_json(venv / "clusterctl.json", {"v": 1, "lock": wheels})
    write_json(job.run(RUN).spec, spec_json(venv=str(venv), versions={"python": "3.11.2"}))
    assert ask(job)[1]["packages"] == {"python": "3.11.2", "some-thing": "1.5", "numpy": "2.0"}


@pytest.mark.parametrize("text", [None, "[1", '{"a": 1}'])
def test_a_damaged_list_of_files_is_an_error(job: JobPaths, text: str | None) -> None:
    manifest = job.meta / "manifest"
    manifest.unlink()
    if text is not None:
        manifest.write_text(text)
    with pytest.raises(AgentError, match="is missing or damaged"):
        ask(job)


def test_too_many_files_are_an_error(job: JobPaths, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operation, "MOST_FILES", 3)
    with pytest.raises(AgentError, match="more than 3 files"):
        ask(job)
