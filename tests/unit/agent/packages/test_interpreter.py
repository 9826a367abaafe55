"""The cached package versions of an interpreter are valid exactly as long as nothing about it changes.

A script in its place, such as a shim of pyenv, is found and measured.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from clusterctl.agent.packages import interpreter
from clusterctl.common.errors import AgentError
from clusterctl.common.paths import PACKAGE_ROOT, interpreter_record
from support.pythons import bare_python

REAL = Path(sys.executable).parent
MEASURE = """
import json, sys
sys.path.insert(0, sys.argv[1])
from clusterctl.agent.packages.interpreter import measure_shim
print(json.dumps(measure_shim(sys.argv[2])))
"""


class Node:
    """A ROOT_DIR and an interpreter whose numpy and zmq are one file each; counts how often it was started."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root = directory / "root"
        interpreter_record(self.root).parent.mkdir(parents=True)
        monkeypatch.setenv("HOME", str(directory / "home"))
        self.python = bare_python(directory / "python", sys.executable)
        self.library = next((directory / "python/lib").glob("python*"))
        self.packages = self.library / "site-packages"
        for name in interpreter.MODULES:
            self.install(name, "1.0")
        self.starts = 0
        monkeypatch.setattr(subprocess, "run", self._counted(subprocess.run))

    def _counted(self, run: Callable[..., object]) -> Callable[..., object]:
        def counted(*args: object, **options: object) -> object:
            self.starts += 1
            return run(*args, **options)

        return counted

    def install(self, name: str, version: str, place: Path | None = None) -> None:
        (place or self.packages).joinpath(name).mkdir(parents=True)
        (place or self.packages).joinpath(name, "__init__.py").write_text(f"from {name}.inner import __version__\n")
        (place or self.packages).joinpath(name, "inner.py").write_text(f"__version__ = '{version}'\n")

    def look(self, python: Path | str | None = None) -> list[str]:
        """Return numpy's version and how often the interpreter was started to find it."""
        before = self.starts
        versions = interpreter.find_versions(self.root, str(python or self.python), runtime=True)
        return [versions["numpy"]] * (self.starts - before)


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    return Node(tmp_path, monkeypatch)


def test_an_unchanged_interpreter_is_run_once(node: Node) -> None:
    assert [node.look(), node.look(), node.look()] == [["1.0"], [], []]


def test_the_optional_package_is_found_once_it_can_be_imported(node: Node) -> None:
    def version() -> str | None:
        return interpreter.find_versions(node.root, str(node.python), runtime=True).get("cryptography")

    assert version() is None
    node.install("cryptography", "48.0")
    assert version() is None
    node.install("cffi", "2.0")
    assert version() == "48.0"
    (node.packages / "cryptography/inner.py").write_text("import nothing\n")
    (node.packages / "another.py").touch()  # a changed directory
    assert version() is None


@pytest.mark.parametrize(("what", "message"), [("numpy", "has no numpy"), ("numpy/inner.py", "does not work")])
def test_a_removed_package_is_noticed(node: Node, what: str, message: str) -> None:
    node.look()
    gone = node.packages / what
    shutil.rmtree(gone) if gone.is_dir() else gone.unlink()
    shutil.rmtree(node.packages / "numpy/__pycache__", ignore_errors=True)
    with pytest.raises(AgentError, match=message):
        node.look()
    with pytest.raises(AgentError):  # failures are not cached
        node.look()


def test_a_changed_version_of_a_package_is_noticed(node: Node) -> None:
    node.look()
    shutil.rmtree(node.packages / "numpy")
    node.install("numpy", "2.0")
    assert [node.look(), node.look()] == [["2.0"], []]


def test_a_package_that_hides_another_is_noticed(node: Node, tmp_path: Path) -> None:
    node.look()
    node.install("numpy", "3.0", tmp_path / "home/.local/lib" / node.library.name / "site-packages")
    assert node.look() == ["3.0"]


def test_a_variable_that_affects_where_packages_are_found_is_noticed(
    node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.look()
    node.install("numpy", "4.0", tmp_path / "mine")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "mine"))
    assert node.look() == ["4.0"]
    monkeypatch.delenv("PYTHONPATH")
    assert node.look() == ["1.0"]


def test_a_replaced_interpreter_is_run_again(node: Node) -> None:
    node.look()
    beside = node.python.with_name("new")
    shutil.copy(node.python, beside)
    beside.replace(node.python)
    assert node.look() == ["1.0"]


def test_a_script_that_chooses_an_interpreter_is_run_each_time(node: Node, tmp_path: Path) -> None:
    script = tmp_path / "chooser"
    script.write_text(f'#!/bin/sh\nexec {node.python} "$@"\n')
    script.chmod(0o755)
    assert [node.look(script), node.look(script)] == [["1.0"], ["1.0"]]


def test_without_the_runtime_only_the_python_version_is_needed(node: Node) -> None:
    shutil.rmtree(node.packages)
    versions = interpreter.find_versions(node.root, str(node.python), runtime=False)
    assert list(versions) == ["python"]
    with pytest.raises(AgentError, match="has no numpy"):
        interpreter.find_versions(node.root, str(node.python), runtime=True)


@pytest.mark.parametrize("text", ["", "{", "{}", "[]", '{"asked": 1}'])
def test_a_damaged_cache_entry_is_ignored(node: Node, text: str) -> None:
    node.look()
    interpreter_record(node.root).write_text(text)
    assert [node.look(), node.look()] == [["1.0"], []]


def shim(directory: Path, *lines: str) -> Path:
    """Write a shim with these lines of shell, the last of which becomes Python."""
    directory.mkdir()
    path = directory / "python3"
    path.write_text("\n".join(("#!/bin/sh", *lines)))
    path.chmod(0o755)
    return path


def measured(python: str, *places: Path) -> Any:
    """Return what is measured by a Python that a shell of a node starts as `python`, with these places in its PATH."""
    environment = {"PATH": os.pathsep.join([*map(str, places), "/usr/bin", "/bin"])}
    command = ["sh", "-c", 'exec "$0" -c "$@"', python, MEASURE, PACKAGE_ROOT, python]
    return json.loads(subprocess.run(command, env=environment, stdout=subprocess.PIPE, timeout=180, check=True).stdout)


@pytest.mark.parametrize("python", [sys.executable, "python3"])
def test_an_interpreter_that_is_started_itself_is_no_shim(python: str) -> None:
    assert measured(python, REAL) is None


@pytest.mark.parametrize("is_in_path", [True, False])
@pytest.mark.parametrize("search", ["", f"export PATH={REAL}:$PATH"])
def test_a_shim_is_measured_whether_or_not_it_changes_path(is_in_path: bool, search: str, tmp_path: Path) -> None:
    path = shim(tmp_path / "shims", "sleep 0.3", search, f'exec {sys.executable} "$@"')
    found = measured("python3" if is_in_path else str(path), path.parent)
    assert found["program"] == sys.executable, "with the links of a virtual environment"
    assert found["seconds"] > 0.1


def test_a_shim_that_starts_another_interpreter_each_time_adds_no_time(tmp_path: Path) -> None:
    other = shim(tmp_path / "other", "sleep 0.3", "echo /usr/bin/another")
    mark = tmp_path / "mark"
    first = f'mkdir {mark} 2>/dev/null && exec {sys.executable} "$@"'
    path = shim(tmp_path / "shims", first, f'exec {other} "$@"')
    assert measured(str(path)) == {"program": sys.executable, "seconds": 0.0}
