"""Environments that uv builds: the same names and contents, and a fallback if it fails."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from clusterctl.agent.operations.prune import find_content
from clusterctl.agent.packages import uv
from clusterctl.cluster import AgentCall
from clusterctl.common.wheels import Wheel, WheelStore
from clusterctl.errors import NodeError
from clusterctl.setup.transfer import send_files
from support.uv import real_uv, write_program
from support.wheels import make_wheel, tiny
from unit.agent.nodes import ask, asked
from unit.agent.operations.test_setup import REQUEST, leftovers, ours, store_of


def build(call: AgentCall, lock: list[Wheel], store: WheelStore, **order: Any) -> dict[str, Any]:
    """Send the wheels and let the node build. Return its answer, with the `uv` of its facts."""
    facts = call.receive()["facts"]
    more = [order["uv"]] if order.get("uv") else []
    send_files(call, [*lock, *more], store)
    call.send({"do": "build", "lock": lock, "with_uv": True, **order})
    return {**call.result(), "uv": facts["uv"]}


def give_uv(home: Path) -> None:
    (home / ".local/bin").mkdir(parents=True)
    (home / ".local/bin/uv").symlink_to(real_uv())


def output_of(*command: object) -> str:
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_uv_builds_an_environment_of_the_same_name_and_contents(tmp_path: Path) -> None:
    store, lock = store_of(tmp_path / "store", tiny(tmp_path))
    answers = {}
    for name in ("with", "without"):
        home = tmp_path / name
        give_uv(home)
        (home / ".config/uv").mkdir(parents=True)
        (home / ".config/uv/uv.toml").write_text("this is no configuration")
        with asked(home, REQUEST) as call:
            answers[name] = build(call, lock, store, with_uv=name == "with")
    made = answers["with"]
    assert made["builder"] == f"uv {made['uv']}"
    assert (made["built"], made["problem"]) == (True, None)
    assert answers["without"]["builder"] == "clusterctl"
    venvs = [ours(tmp_path / name) / "venvs" / answers[name]["environment"] for name in answers]
    assert len({venv.name for venv in venvs}) == 1 or sys.base_prefix == sys.prefix
    for venv in venvs:
        code = "import sys, tiny; print(sys.prefix, tiny.VERSION)"
        assert output_of(venv / "bin/python", "-c", code) == f"{venv} 1.0"
        assert output_of(venv / "bin/tiny-say") == "tiny 1.0"
        assert output_of(venv / "bin/tiny-plain") == str(venv)
    files = [{str(path.relative_to(venv)) for path in venv.rglob("tiny*") if path.is_file()} for venv in venvs]
    assert files[0] == files[1]
    assert not list(venvs[0].rglob("direct_url.json"))
    assert leftovers(tmp_path / "with") == []
    changed = {path.name for path in (tmp_path / "with").iterdir()}
    assert changed == {".local", ".config", "root"}, "uv writes to its cache alone"


def test_uv_is_sent_as_a_wheel_and_kept(tmp_path: Path) -> None:
    home = tmp_path / "home"
    program = f'#!/bin/sh\nexec {real_uv()} "$@"\n'
    sent = make_wheel(tmp_path, "uv", "0.99", {"scripts/uv": program})
    store, [wheel, tool] = store_of(tmp_path / "store", tiny(tmp_path), sent)
    with asked(home, REQUEST) as call:
        made = build(call, [wheel], store, uv=tool)
    assert made["uv"] is None
    assert made["builder"].startswith("uv ")
    with asked(home, {**REQUEST, "requirements": ["more"]}) as call:
        assert call.receive()["facts"]["uv"] == made["builder"].removeprefix("uv ")
    found = {item["name"]: item for item in find_content(home / "root") if item["kind"] == "uv"}
    assert set(found) == {"cache", tool.digest}
    assert not any(item["live"] or item["needed_by"] for item in found.values())
    wanted = [["uv", name] for name in found]
    assert ask(home, {"op": "prune", "remove": {"jobs": [], "content": wanted}})["kept"] == []
    assert list((ours(home) / "uv").iterdir()) == []
    venv = ours(home) / "venvs" / made["environment"]
    assert output_of(venv / "bin/tiny-say") == "tiny 1.0", "the environment keeps its files"


@pytest.mark.parametrize(
    ("script", "version", "problem"),
    [
        ('[ "$1" = --version ] && echo "uv 0.9.1 (x)" || { echo "no luck" >&2; exit 2; }', "0.9.1", "no luck"),
        ('[ "$1" = --version ] && echo "uv 0.9.1 (x)" || mkdir "$3" no/where', "0.9.1", "mkdir"),
        ('echo "uv 0.4.30"', None, None),
        ("echo something else", None, None),
        ("exit 1", None, None),
    ],
    ids=["fails", "cannot", "old", "other", "broken"],
)
def test_without_a_uv_that_works_the_environment_is_built_all_the_same(
    script: str, version: str | None, problem: str | None, tmp_path: Path
) -> None:
    home = tmp_path / "home"
    write_program(home / ".local/bin/uv", script)
    store, lock = store_of(tmp_path / "store", tiny(tmp_path))
    with asked(home, REQUEST) as call:
        made = build(call, lock, store)
    assert (made["uv"], made["builder"]) == (version, "clusterctl")
    assert made["problem"] == problem if problem is None else problem in made["problem"]
    assert output_of(ours(home) / "venvs" / made["environment"] / "bin/tiny-say") == "tiny 1.0"
    assert leftovers(home) == []


def test_a_wheel_that_is_no_uv_is_reported_and_not_used(tmp_path: Path) -> None:
    store, [wheel, tool] = store_of(tmp_path / "store", tiny(tmp_path), make_wheel(tmp_path, "uv", "1", {"uv.py": ""}))
    with asked(tmp_path / "home", REQUEST) as call:
        made = build(call, [wheel], store, uv=tool)
    assert made["builder"] == "clusterctl"
    assert "is not a wheel of uv" in made["problem"]
    assert list((ours(tmp_path / "home") / "uv").iterdir()) == []


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"../../escaped.py": ""}, "would be outside the environment"),
        ({"entry_points.txt": "[console_scripts]\n../x = a:b\n"}, "not an entry point"),
        ({"entry_points.txt": "x = a:b\n"}, "no section headers"),
    ],
)
def test_uv_is_not_given_a_wheel_that_we_would_refuse(files: dict[str, str], expected: str, tmp_path: Path) -> None:
    home = tmp_path / "home"
    give_uv(home)
    store, lock = store_of(tmp_path / "store", make_wheel(tmp_path, "tiny", "1.0", files))
    with asked(home, REQUEST) as call, pytest.raises(NodeError, match=expected):
        build(call, lock, store)
    assert not list(home.rglob("escaped.py"))


def test_a_wheel_that_changed_in_the_store_is_not_installed(tmp_path: Path) -> None:
    home = tmp_path / "home"
    give_uv(home)
    files = {"more.py": "x = 1111\n"}
    store, lock = store_of(tmp_path / "store", make_wheel(tmp_path, "more", "2", files))
    with asked(home, REQUEST) as call:
        call.receive()
        send_files(call, lock, store)
        call.send({"do": "offer", "lock": lock, "online": False, "options": []})
        assert call.receive() == {"missing": []}
        path = WheelStore(ours(home) / "wheels").path(lock[0])
        path.write_bytes(path.read_bytes().replace(b"x = 1111", b"x = 2222"))
        call.send({"do": "build", "lock": lock, "with_uv": True})
        with pytest.raises(NodeError, match="not a valid wheel"):
            call.result()


def test_the_cache_of_uv_may_be_on_another_file_system(tmp_path: Path) -> None:
    memory = Path("/dev/shm")
    if not os.access(memory, os.W_OK) or memory.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("needs a second file system at /dev/shm")

    home = tmp_path / "home"
    give_uv(home)
    store, lock = store_of(tmp_path / "store", tiny(tmp_path))
    with tempfile.TemporaryDirectory(dir=memory) as other:
        ours(home).mkdir(parents=True, mode=0o700)
        (ours(home) / "uv").symlink_to(other)
        with asked(home, REQUEST) as call:
            made = build(call, lock, store)
        assert made["builder"].startswith("uv ")
        assert any(Path(other, "cache").iterdir())
    assert output_of(ours(home) / "venvs" / made["environment"] / "bin/tiny-say") == "tiny 1.0"


def test_versions_of_uv_are_compared_as_numbers(tmp_path: Path) -> None:
    for printed, expected in (("0.10.2", "0.10.2"), ("1.0.0a1", "1.0.0a1"), ("0.4.99", None)):
        program = write_program(tmp_path / printed / "uv", f'echo "uv {printed} (abc 2026-01-01)"')
        found = uv._try(tmp_path, str(program))
        assert (found.version if found else None) == expected
