"""`start --adopt`: directories that were deployed by hand run where they are, and behave like any job."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from contract.e2e.programs import REGRESSION
from support.site import Site

pytestmark = [pytest.mark.nodes(2), pytest.mark.slow]
NAME = "ctr-model"
OURS = {"log", "output", "nodefile", ".clusterctl"}
Deploy = Callable[..., None]


@pytest.fixture
def deploy(site: Site) -> Iterator[Deploy]:
    """Copy files to all nodes, and remove them again: the other tests share the nodes."""

    def copy(train: str, name: str = NAME, nodes: tuple[int, ...] = (0, 1)) -> None:
        for node in nodes:
            directory = site.job_dir(name, node)
            (directory / "data").mkdir(parents=True)
            directory.chmod(0o755)
            (directory / "train.py").write_text(train)
            (directory / "data" / "part.csv").write_text(f"of node {node}\n")
            (directory / "data" / "both.csv").write_text("of both nodes\n")

    yield copy
    for node in range(2):
        shutil.rmtree(site.job_dir(NAME, node), ignore_errors=True)


def look(directory: Path) -> dict[str, tuple[int, int, int]]:
    paths = [path for path in directory.rglob("*") if path.relative_to(directory).parts[0] not in OURS]
    return {str(path): (path.stat().st_ino, path.stat().st_mtime_ns, path.stat().st_mode) for path in paths}


def listed(site: Site) -> dict[str, Any]:
    return {job["job"]: job for job in site.ok("jobs", "--json").json()["jobs"]}


def test_a_directory_deployed_by_hand_is_a_job_of_its_name(site: Site, deploy: Deploy) -> None:
    deploy(REGRESSION)
    before = [look(site.job_dir(NAME, node)) for node in range(2)]
    refused = site.run("start", "--job_workspace", f"~/clusterctl/{NAME}")
    assert (refused.code, f"start --job_workspace {NAME} --adopt" in refused.err) == (4, True)
    assert not (site.job_dir(NAME, 0) / ".clusterctl").exists()
    done = site.ok("start", "--job_workspace", f"~/clusterctl/{NAME}", "--adopt", "--", "--num_passes", "2")
    assert f"adopted {NAME} on 2/2 nodes: 3 files" in done.out
    assert "note: 1 file with other contents on other nodes: data/part.csv" in done.out
    assert "on some nodes only" not in done.out
    status = site.status(NAME)
    assert (status["job"], status["run"], status["state"]) == (NAME, "0001", "succeeded")
    assert listed(site)[NAME]["files"] == 3
    assert "end of pass 1" in site.ok("logs", NAME, "--role", "trainer").out
    assert site.ok("why", NAME)
    unnamed = site.run("collect")
    assert (unnamed.code, f"clusterctl collect {NAME}" in unnamed.err) == (2, True)
    collected = site.ok("collect", NAME, "-o", "home", "--json").json()
    assert collected["tag"] == "pass-00001"
    assert site.ok("stop", NAME, "--json").json()["survivors"] == 0
    site.ok("start", "--job_workspace", NAME, "--", "--num_passes", "1")
    assert site.status(NAME)["run"] == "0002"
    assert [look(site.job_dir(NAME, node)) for node in range(2)] == before
    site.assert_nothing_left(NAME)
