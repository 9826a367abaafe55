"""`clusterctl setup` with a lock file, and with uv on some of the nodes, as a user runs it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from clusterctl.common.wheels import Wheel, describe
from clusterctl.setup.locks.lock_file import PYPI
from support.site import Site
from support.uv import real_uv
from support.web import served
from support.wheels import tiny

TRAIN = "import sys, tiny\nprint('got', tiny.VERSION, sys.prefix, flush=True)\n"


@pytest.fixture
def index(site: Site) -> Iterator[str]:
    """Serve the directory `index` of the site."""
    with served(site.directory / "index") as url:
        yield url


@pytest.fixture
def uv_on_node0(site: Site) -> Iterator[None]:
    path = site.home(0) / ".local/bin/uv"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(real_uv())
    yield
    path.unlink()


def uv_lock(wheel: Wheel, url: str) -> str:
    return f"""version = 1
requires-python = ">=3.9"

[[package]]
name = "mine"
version = "0.1"
source = {{ virtual = "." }}
dependencies = [
    {{ name = "tiny" }},
    {{ name = "colorama", marker = "sys_platform == 'win32'" }},
]

[[package]]
name = "colorama"
version = "0.4.6"
source = {{ registry = "{PYPI[0]}" }}
wheels = [
    {{ url = "{url}/colorama-0.4.6-py3-none-any.whl", hash = "sha256:{"0" * 64}", size = 1 }},
]

[[package]]
name = "tiny"
version = "{wheel.version}"
source = {{ registry = "{PYPI[0]}" }}
wheels = [
    {{ url = "{url}/{wheel.file}", hash = "sha256:{wheel.digest}", size = {wheel.size} }},
]
"""


def set_up(site: Site, directory: Path, *options: str) -> Any:
    home = {"HOME": str(site.directory / "myhome")}
    return site.ok("setup", str(directory), *options, "--json", env=home).json()


@pytest.mark.slow
def test_a_job_runs_with_the_wheels_of_a_lock_whatever_built_its_environment(
    site: Site, index: str, uv_on_node0: None
) -> None:
    site.conf(ENGINE="none")
    wheel = describe(tiny(site.directory / "index", "1.5"))
    real_uv()
    project = '[project]\nname = "mine"\nversion = "0.1"\nrequires-python = ">=3.9"\n'
    files = {"uv.lock": uv_lock(wheel, index), "pyproject.toml": project, "requirements.txt": "this is not used\n"}
    directory = site.workspace(TRAIN, **files)
    others = set_up(site, directory, "--only=node[1-3]", "--no-uv")
    assert [node["built_by"] for node in others["nodes"]] == ["clusterctl"] * 3
    first = set_up(site, directory)
    assert first["lock"] == "uv.lock"
    [group] = first["environments"]
    assert (group["packages"], others["environments"][0]["chosen_by"]) == ({"tiny": "1.5"}, "uv.lock")
    assert len({node["environment"] for node in first["nodes"]}) == 1, "the same name everywhere"
    assert [node["built"] for node in first["nodes"]] == [True, False, False, False]
    assert first["nodes"][0]["built_by"].startswith("uv ")
    assert [node["bytes_sent"] for node in (*others["nodes"], first["nodes"][0])] == [0] * 4, "they fetched it"

    again = site.ok("setup", str(directory)).out
    assert "requirements.txt is not used, because uv.lock is there" in again
    assert "node[0-3]  python" in again
    assert "already ready" in again

    site.ok("start", "--job_dispatch_package", str(directory))
    logs = site.ok("logs", "--role=trainer").out
    for node in range(4):
        assert str(site.home(node) / "clusterctl/.clusterctl/venvs" / first["nodes"][node]["environment"]) in logs

    changed = uv_lock(wheel._replace(digest="0" * 64), index)
    (directory / "uv.lock").write_text(changed)
    refused = site.run("setup", str(directory), "--no-uv")
    assert refused.code == 4
    assert f"tiny 1.5: {wheel.file} from 127.0.0.1 is not the locked file" in refused.err
    warned = site.run("start", "--job_dispatch_package", str(directory))
    assert "no environment for uv.lock: the job uses the packages that PYTHON has" in warned.out


def test_wheels_of_the_workspace_and_of_pip_complete_a_lock(site: Site) -> None:
    site.conf(ENGINE="none")
    directory = site.workspace(TRAIN)
    wheel = describe(tiny(directory / "wheels", "1.7"))
    (directory / "pylock.toml").write_text(
        'lock-version = "1.0"\ncreated-by = "me"\n[[packages]]\nname = "tiny"\nversion = "1.7"\n'
        f'wheels = [{{ path = "wheels/{wheel.file}", hashes = {{ sha256 = "{wheel.digest}" }} }}]\n'
    )
    made = set_up(site, directory, "--offline")
    assert [node["built"] for node in made["nodes"]] == [True] * 4
    (directory / "uv.lock").write_text("version = 1\n")
    both = site.run("setup", str(directory))
    assert both.code == 2
    assert "has two lock files, pylock.toml and uv.lock" in both.err
