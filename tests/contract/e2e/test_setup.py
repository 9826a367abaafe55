"""`clusterctl setup` as a user runs it, with packages from a directory so that no network is needed."""

from __future__ import annotations

import platform
import re
import socket
import sys
from pathlib import Path

import pytest

from support.pythons import bare_python
from support.site import Site, make_site
from support.uv import write_program
from support.wheels import tiny
from unit.agent.nodes import PYTHONS

pytestmark = pytest.mark.slow

TRAIN = "import sys, tiny\nprint('got', tiny.VERSION, sys.prefix, flush=True)\n"


def workspace(site: Site, version: str = "1.0") -> Path:
    """Make a workspace that needs this version of the tiny package from a directory next to it."""
    site.conf(ENGINE="none")
    index = site.directory / "index"
    tiny(index, version)
    text = f"--no-index\n--find-links {index}\ntiny=={version}\n"
    return site.workspace(TRAIN, **{"requirements.txt": text})


def test_a_job_runs_in_the_environment_created_by_setup(site: Site) -> None:
    directory = workspace(site)
    home = {"HOME": str(site.directory / "myhome")}  # the downloads are kept there
    first = site.ok("setup", str(directory), "--offline", "--json", env=home).json()
    assert [node["built"] for node in first["nodes"]] == [True] * 4
    assert len({node["environment"] for node in first["nodes"]}) == 1
    assert [list(group["packages"]) for group in first["environments"]] == [["tiny"]]
    assert not any("--" in line for line in first["requirements"])

    again = site.ok("setup", str(directory), "--offline", "--json", env=home).json()
    assert [node["built"] for node in again["nodes"]] == [False] * 4

    job = _run(site, directory)
    logs = site.ok("logs", job, "--role=trainer").out
    for node in range(4):
        venv = site.home(node) / "clusterctl/.clusterctl/venvs" / first["nodes"][node]["environment"]
        assert str(venv) in logs


def _run(site: Site, directory: Path) -> str:
    site.ok("start", "--job_dispatch_package", str(directory))
    return str(site.ok("jobs", "--json").json()["jobs"][0]["job"])


def test_a_start_without_setup_warns_and_why_names_the_missing_environment(site: Site) -> None:
    directory = workspace(site, "7.0")
    done = site.run("start", "--job_dispatch_package", str(directory))
    assert done.code == 1
    assert "no environment for requirements.txt: the job uses the packages that PYTHON has" in done.out
    assert "clusterctl setup WORKSPACE" in done.out
    job = site.ok("jobs", "--json").json()["jobs"][0]["job"]
    report = site.ok("why", job, "--json").json()
    assert "tiny is in requirements.txt, but the run had no environment made by clusterctl setup" in report["notes"]
    (directory / "requirements.txt").write_text("numpy\n")
    site.run("start", "--job_dispatch_package", str(directory))
    output = site.ok("why").out
    assert "tiny is not in requirements.txt" in output
    assert "what to do: add tiny to requirements.txt" in output


def test_offline_packages_are_sent_from_this_machine_and_cached_on_it(site: Site) -> None:
    directory = workspace(site, "2.0")
    home = {"HOME": str(site.directory / "myhome")}
    first = site.ok("setup", str(directory), "--offline", "--only=node0", "--json", env=home).json()
    assert first["nodes"][0]["bytes_sent"] > 0
    assert first["environments"][0]["chosen_by"] == "this machine"
    for wheel in (site.directory / "index").iterdir():
        wheel.unlink()
    rest = site.ok("setup", str(directory), "--offline", "--json", env=home).json()
    assert [node["built"] for node in rest["nodes"]] == [False, True, True, True]
    assert {node["environment"] for node in rest["nodes"]} == {first["nodes"][0]["environment"]}


def test_packages_for_many_nodes_are_sent_once(site: Site) -> None:
    directory = workspace(site, "6.0")
    site.conf(ENGINE="none", RELAY="always")
    home = {"HOME": str(site.directory / "myhome")}
    done = site.ok("setup", str(directory), "--offline", "--json", env=home).json()
    assert done["environments"][0]["relayed"]
    assert [bool(node["bytes_sent"]) for node in done["nodes"]] == [True, False, False, False]
    assert [node["built"] for node in done["nodes"]] == [True] * 4


def test_upgrade_resolves_versions_again(site: Site) -> None:
    directory = workspace(site, "3.0")
    (directory / "requirements.txt").write_text(f"--no-index\n--find-links {site.directory / 'index'}\ntiny>=3\n")
    two = ("setup", str(directory), "--only=node[0,1]", "--json")
    first = site.ok(*two).json()
    assert first["environments"][0]["chosen_by"] == "node0"
    assert [node["bytes_sent"] for node in first["nodes"]] == [0, 0], "node1 has fetched it itself"
    tiny(site.directory / "index", "3.1")
    kept = site.ok(*two).json()
    assert kept["environments"][0]["packages"] == {"tiny": "3.0"}
    new = site.ok(*two, "--upgrade").json()
    assert new["environments"][0]["packages"] == {"tiny": "3.1"}


def test_an_unreachable_node_does_not_prevent_the_others_from_being_ready(site: Site) -> None:
    directory = workspace(site, "4.0")
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        site.conf(ENGINE="none", HOSTS=[*site.hosts[:3], f"127.0.0.1:{sock.getsockname()[1]}"])
        result = site.run("setup", str(directory), "--offline", "--json", env={"HOME": str(site.directory / "myhome")})
    assert result.code == 3
    nodes = result.json()["nodes"]
    assert [node["ok"] for node in nodes] == [True, True, True, False]
    assert "3/4 nodes ready" in result.err
    site.conf(ENGINE="none")
    refused = site.run("start", "--job_dispatch_package", str(directory))
    assert refused.code == 4
    assert "no environment for requirements.txt on node3" in refused.err
    assert "clusterctl setup" in refused.err


def test_nodes_with_other_pythons_get_matching_wheels_even_without_pip_and_venv(tmp_path: Path) -> None:
    ours = f"3.{sys.version_info.minor}"
    others = {version: path for version, path in PYTHONS.items() if int(version[2:]) >= 9 and version != ours}
    if len(others) < 2:
        pytest.skip("needs two other versions of Python")
    first, second = list(others)[:2]
    bare = bare_python(tmp_path / "bare", sys.executable)
    with make_site("openssh", tmp_path, 3) as site:
        for node, python in enumerate([others[first], others[second]]):
            site.bin(node).mkdir()
            (site.bin(node) / "python3").symlink_to(python)
        # The PATH of nodes has the directory of this Python, where uv is.
        write_program(site.bin(2) / "python3", f'PATH=/usr/bin:/bin exec {bare} "$@"')
        directory = workspace(site)
        index = site.directory / "index"
        for version, python in (("1.1", first), ("1.2", second)):
            abi = python.replace("3.", "cp3")
            tiny(index, version, f"{abi}-{abi}-linux_{platform.machine()}")
        (directory / "requirements.txt").write_text(f"--no-index\n--find-links {index}\ntiny>=1\n")
        home = {"HOME": str(site.directory / "myhome")}
        made = site.ok("setup", str(directory), "--offline", env=home).out
        assert "tiny differs: 1.1 on node0, 1.2 on node1, 1.0 on node2" in made
        assert site.ok("setup", str(directory)).out.count("already ready") == 3
        findings = site.ok("check", "--json").json()["findings"]
        assert [(one["check"], one["nodes"]) for one in findings if "python differs" in one["message"]] == [
            ("versions", [1, 2])
        ]
        job = _run(site, directory)
        logs = site.ok("logs", job, "--role=trainer").out
        assert sorted(re.findall(r"got (\S+)", logs)) == ["1.0", "1.1", "1.2"]
        (directory / "requirements.txt").write_text(f"--no-index\n--find-links {index}\ntiny==1.0\n")
        fallen_back = site.ok("setup", str(directory), "--only=node2").out
        assert "node2  no pip or uv: using packages from this machine" in fallen_back


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("nump y==", "requirements.txt:2: 'nump y==' is not a requirement"),
        ("-r other.txt", "requirements.txt:2: '-r other.txt' refers to another file"),
        ("tiny==99", "tiny==99"),
    ],
)
def test_requirements_that_cannot_be_met_are_named(site: Site, line: str, message: str) -> None:
    directory = workspace(site, "5.0")
    index = site.directory / "index"
    (directory / "requirements.txt").write_text(f"--no-index --find-links {index}\n{line}\n")
    result = site.run("setup", str(directory))
    assert result.code == 2, result.err
    assert message in result.err
    assert "Traceback" not in result.err
