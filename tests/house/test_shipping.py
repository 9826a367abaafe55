"""The files that are sent to the nodes, and the contents of the wheel."""

from __future__ import annotations

import ast
import subprocess
import sys
import zlib

import pytest

from clusterctl.cluster.agent_call import Bundle
from house.source import PACKAGE, ROOT, SHIPPED, modules
from unit.agent.nodes import OLDEST, needs


def test_code_that_is_sent_to_nodes_compiles_under_python_3_9() -> None:
    program = (
        "import sys\n"
        "for path in sys.argv[1:]:\n"
        "    with open(path, encoding='utf-8') as f: compile(f.read(), path, 'exec', dont_inherit=True)\n"
    )
    paths = [str(path) for part in SHIPPED for path in (PACKAGE / part).rglob("*.py")]
    paths.append(str(PACKAGE / "__init__.py"))
    done = subprocess.run([needs(OLDEST), "-I", "-c", program, *paths], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_every_module_of_common_and_agent_can_be_imported_by_python_3_9() -> None:
    names = [f"clusterctl.{name}" for name in modules() if name.partition(".")[0] in ("common", "agent")]
    assert "clusterctl.agent.operations.start" in names
    program = "import importlib, sys; sys.path.insert(0, sys.argv[1]); [*map(importlib.import_module, sys.argv[2:])]"
    command = [needs(OLDEST), "-I", "-S", "-c", program, str(PACKAGE.parent), *names]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_boot_program_has_the_syntax_of_pythons_that_it_must_refuse() -> None:
    oldest = (3, 6) if sys.version_info < (3, 13) else (3, 7)  # the oldest one whose syntax this Python knows
    boot = ast.parse((PACKAGE / "agent" / "boot.py").read_text(), feature_version=oldest)
    assert not [node for node in boot.body if isinstance(node, ast.ImportFrom) and node.module == "__future__"]


def test_the_bundle_holds_exactly_the_shipped_files() -> None:
    data, names = zlib.decompress(Bundle().parcel.partition(b"\n")[2]), []
    while data:
        name, size, rest = data.split(b"\0", 2)
        names.append(name.decode())
        data = rest[int(size) :]
    expected = [PACKAGE / "__init__.py", *(p for part in SHIPPED for p in (PACKAGE / part).rglob("*.py"))]
    assert sorted(names) == sorted(path.relative_to(ROOT).as_posix() for path in expected)
    assert Bundle().digest == Bundle().digest
    assert Bundle().parcel == Bundle().parcel


def test_the_wheel_contains_the_whole_package_and_the_files_that_init_copies() -> None:
    tomllib = pytest.importorskip("tomllib")
    build = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]
    assert set(build) == {"targets"}, "nothing is excluded"
    wheel = build["targets"]["wheel"]
    assert set(wheel) == {"only-include", "sources", "force-include", "dev-mode-dirs"}
    assert wheel["only-include"] == ["clusterctl", *wheel["sources"]]
    for source, target in {**wheel["sources"], **wheel["force-include"]}.items():
        assert (ROOT / source).exists()
        assert target == f"clusterctl/_data/{source}"
    for part in SHIPPED:
        assert (PACKAGE / part / "__init__.py").is_file()
    assert (PACKAGE / "py.typed").is_file()
