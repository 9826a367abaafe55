from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from clusterctl.agent.node import jobs
from clusterctl.agent.node.job_choice import choose_job
from clusterctl.common import fastjson
from clusterctl.common.paths import PACKAGE_ROOT, is_job_id
from clusterctl.common.tree import content_of

TEXT = 'quote " back \\ line \n \u00fc \u2028 \U0001f989'
VALUE = {"a": [1, 2.5, -1e300, None, True, {}], "text": TEXT, "b": float("inf")}


def test_json_is_written_and_read_like_the_standard_librarys() -> None:
    packed = json.dumps(VALUE, separators=(",", ":")).encode()
    assert fastjson.dumps(VALUE) == packed
    assert fastjson.loads(packed) == fastjson.loads(b"\n" + json.dumps(VALUE, indent=1).encode() + b"\n") == VALUE


@pytest.mark.parametrize("text", [b"", b"{", b"{} {}", b"nope", b"\xff", b"[1,]", b"{'a': 1}"])
def test_invalid_json_is_a_value_error(text: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - as of json, with whatever words
        fastjson.loads(text)


@pytest.mark.parametrize("text", ['["a', '{"a": 1', '{"a" 1}', '["\\x"]'])
def test_invalid_json_is_a_value_error_before_json_has_been_imported(text: str) -> None:
    code = f"from clusterctl.common.fastjson import loads\ntry: loads({text!r})\nexcept ValueError: print('invalid')"
    command = [sys.executable, "-S", "-c", f"import sys; sys.path.insert(0, {PACKAGE_ROOT!r})\n{code}"]
    assert subprocess.run(command, capture_output=True, check=True).stdout == b"invalid\n"


def test_a_light_path_lists_jobs_as_a_path_does(tmp_path: Path) -> None:
    for name in ("JOB20261121-081530", "JOB20261121-081530-2", "JOB20261121", "JOB20261121-081530-x", "data"):
        (tmp_path / name / ".clusterctl").mkdir(parents=True)
        (tmp_path / name / ".clusterctl/job.json").write_text('{"files": 3}')
    light, listed = fastjson.LightPath(tmp_path), jobs.list_jobs(tmp_path)
    assert [job["job"] for job in listed] == ["JOB20261121-081530-2", "JOB20261121-081530"]
    assert jobs.list_jobs(light) == listed  # type: ignore[arg-type]
    for ref in ("JOB20261121-081530", str(tmp_path / "JOB20261121-081530")):
        assert jobs.describe(jobs.find_job(light, ref)) == jobs.describe(jobs.find_job(tmp_path, ref))  # type: ignore[arg-type]
    assert str(choose_job(light, None)[0].dir) == str(choose_job(tmp_path, None)[0].dir)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "is_one"),
    [
        ("JOB20261121-081530", True),
        ("JOB20261121-081530-12", True),
        ("JOB20261121-081530-", False),
        ("JOB20261121-081530-1-2", False),
        ("JOB20261121-08153", False),
        ("JOB2026112x-081530", False),
        ("JOB\u0662\u0660\u0662\u0666\u0661\u0661\u0662\u0661-081530", False),
        ("XYZ20261121-081530", False),
        ("JOB", False),
    ],
)
def test_job_ids_are_distinguished_from_other_names(name: str, is_one: bool) -> None:
    assert is_job_id(name) is is_one


def answered(root: Path, *lines: dict[str, object]) -> tuple[dict[str, Any], set[str]]:
    """Return the last line of an agent's answer to these messages, and the modules that it loaded."""
    request, *messages = (json.dumps(line).encode() + b"\n" for line in lines)
    code = (
        f"import sys; sys.path.insert(0, {PACKAGE_ROOT!r}); from clusterctl.agent.main import main\n"
        f"main({str(root)!r}, {request!r}, 0o022)"
    )
    command = [sys.executable, "-I", "-S", "-X", "importtime", "-c", code]
    done = subprocess.run(command, capture_output=True, input=b"".join(messages), check=False)
    loaded = {line.rpartition("|")[2].strip() for line in done.stderr.decode().splitlines()}
    return json.loads(done.stdout.splitlines()[-1]), loaded


def test_status_is_answered_without_expensive_imports(tmp_path: Path) -> None:
    answer, loaded = answered(tmp_path, {"op": "status", "ref": None})
    assert answer["error"]["kind"] == "no_job"
    assert "clusterctl.agent.node.jobs" in loaded
    assert not loaded & {"json", "pathlib", "re", "typing", "contextlib", "functools", "enum", "signal", "hashlib"}


def test_a_stop_does_without_pathlib(tmp_path: Path) -> None:
    job = tmp_path / "JOB20261121-081530"
    (job / ".clusterctl").mkdir(parents=True, mode=0o700)
    (job / ".clusterctl/job.json").write_text("{}")
    answer, loaded = answered(tmp_path, {"op": "stop", "ref": job.name})
    assert answer["done"]["survivors"] == 0
    assert not loaded & {"json", "pathlib", "re", "typing", "socket"}


def test_a_dispatch_is_received_without_expensive_imports(tmp_path: Path) -> None:
    request = {"nonce": "n", "node": 0, "nodes": 1, "by": "me", "workspace": "w", "source": "s", "complete": None}
    options = {
        "content": "c",
        "base": None,
        "tree": content_of([]),
        "manifest_bytes": 0,
        "rehash": False,
        "plan": False,
    }
    go = {"go": "JOB20261121-081530", "supersede": None, "blobs": 0, "compressed": False, "resume": {}}
    answer, loaded = answered(tmp_path, {"op": "dispatch", **request, **options}, go)
    assert answer["done"]["dir"] == str(tmp_path / go["go"])
    assert "clusterctl.agent.dispatch.staging" in loaded
    assert not loaded & {"json", "pathlib", "fnmatch", "shutil", "tempfile", "subprocess", "socket"}
