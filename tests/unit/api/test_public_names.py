"""The names of the API: what they cost, what they load, and what a node says about them."""

from __future__ import annotations

import importlib
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import clusterctl
from house.source import PACKAGE, SHIPPED, imported, modules, within


def run(program: str, *places: Path) -> subprocess.CompletedProcess[str]:
    path = f"import sys; sys.path[:0] = {[str(place) for place in places]}\n"
    command = [sys.executable, "-I", "-c", path + program]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def loaded_by(program: str) -> set[str]:
    done = run(f"{program}\nimport sys; print(*sys.modules)", PACKAGE.parent)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


@pytest.mark.parametrize("name", clusterctl.__all__)
def test_every_public_name_exists_and_comes_from_the_module_that_defines_it(name: str) -> None:
    value = getattr(clusterctl, name)
    assert value.__name__ == name
    assert getattr(importlib.import_module(value.__module__), name) is value
    assert value.__doc__ or issubclass(value, clusterctl.ClusterctlError)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Custer'"):
        clusterctl.Custer  # noqa: B018 - the access is the test


def test_importing_the_package_loads_nothing_but_the_standard_library() -> None:
    bare = loaded_by("")
    more = loaded_by("import clusterctl") - bare
    assert {name for name in more if name.partition(".")[0] not in sys.stdlib_module_names} == {"clusterctl"}
    assert not {"numpy", "clusterctl.api.cluster"} & loaded_by("from clusterctl import runtime")


def test_the_api_loads_nothing_of_the_command_line_nor_numpy_before_it_is_needed() -> None:
    loaded = loaded_by("import clusterctl; clusterctl.Cluster, clusterctl.Run, clusterctl.Step")
    assert "clusterctl.api.cluster" in loaded
    tops = {name.partition(".")[0] for name in loaded}
    assert not {"rich", "typer", "click", "paramiko", "numpy", "pandas"} & tops
    loaded.discard("clusterctl.runtime")  # only its list of names
    assert not [name for name in loaded if within(name, ["clusterctl.cli", "clusterctl.agent", "clusterctl.runtime"])]


def test_no_part_below_the_command_line_imports_it() -> None:
    below = [module for module in modules() if within(module, ["api"])]
    assert len(below) > 15
    assert [module for module in below if any(within(name, ["cli"]) for name in imported(module))] == []


def test_operations_know_nothing_of_the_objects_over_them() -> None:
    """A command calls an operation without a `Cluster`, a `Job` or a `Run`."""
    objects = ("api.cluster", "api.job", "api.run", "api.session", "api.sweep")
    operations = [module for module in modules() if within(module, ["api"]) and not within(module, objects)]
    assert len(operations) > 10
    assert [module for module in operations if any(within(name, objects) for name in imported(module))] == []


def test_on_a_node_the_api_is_refused_in_words(tmp_path: Path) -> None:
    node = tmp_path / "clusterctl"
    node.mkdir()
    shutil.copy(PACKAGE / "__init__.py", node)
    for part in SHIPPED:
        shutil.copytree(PACKAGE / part, node / part)
    for program in ("from clusterctl import Cluster", "import clusterctl; clusterctl.UsageError"):
        done = run(program, tmp_path)
        assert done.returncode == 1
        assert "ImportError: clusterctl's Python API is for the control machine" in done.stderr
