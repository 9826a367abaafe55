"""The Python API looks after nodes, and turns runs into files, as the commands do."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

import clusterctl
from e2e.programs import LEAVE, REGRESSION, SLEEP
from support.site import Site
from support.wheels import tiny

pytestmark = pytest.mark.nodes(2)
WAIT_S = 120.0
BY_HAND = "deployed-by-hand"


def test_runs_become_files_and_are_compared(site: Site, cluster: clusterctl.Cluster) -> None:
    job = cluster.dispatch(site.workspace(REGRESSION))
    first = job.start(["--num_passes=1"])
    assert first.wait(timeout=WAIT_S).document["state"] == "succeeded"
    with pytest.raises(clusterctl.RefusedError):
        first.save()
    second = job.start(["--num_passes=2"], name="longer")
    assert second.wait(timeout=WAIT_S).ok
    found = first.diff(second)
    assert found.errors == ()
    assert ("arguments", "--num_passes", "1", "2") in [(d.section, d.name, d.a, d.b) for d in found.differences]
    assert found.document["b"]["run"] == "0002"
    assert first.diff(first.id).differences == ()
    file = second.report(site.directory)
    assert file == site.directory / f"{job.id}-run2.html"
    assert file.read_text().startswith("<!DOCTYPE html>")
    with pytest.raises(clusterctl.UsageError, match="is not a directory"):
        second.report(site.directory / "nowhere" / "report.html")
    exported = second.export(site.directory / "points")
    assert exported.errors == ()
    assert {path.name for path in exported.files} >= {"points.csv"}
    assert exported.count > 0
    with pytest.raises(clusterctl.RefusedError, match="is not running"):
        job.rejoin()


def test_a_checkpoint_is_made_now(site: Site, cluster: clusterctl.Cluster) -> None:
    run = cluster.dispatch(site.workspace(REGRESSION)).start(["--num_passes=100000"], timeout=WAIT_S)
    for event in run.events():
        if isinstance(event, clusterctl.Step):
            break
    checkpoint = run.save(timeout=WAIT_S)
    run.stop()
    assert checkpoint.step == int(checkpoint.tag.removeprefix("step-")) > 0


def test_nodes_are_checked_and_old_jobs_go(site: Site, cluster: clusterctl.Cluster) -> None:
    checked = cluster.check()
    assert [finding for finding in checked.findings if finding.blocks] == []
    assert checked.ok
    assert [node["node"] for node in checked.document["nodes"]] == [0, 1]
    old, running = (cluster.dispatch(site.workspace(program, name)) for program, name in ((LEAVE, "a"), (SLEEP, "b")))
    run = running.start(timeout=WAIT_S)
    planned = cluster.prune(keep=0, older_than_s=0, plan=True)
    there = [job.id for job in cluster.jobs()]
    pruned = cluster.prune(keep=0, older_than_s=0)
    run.stop()
    assert (planned.removed, old.id in planned.jobs, running.id in planned.jobs) == (False, True, False)
    assert planned.bytes > 0
    assert old.id in there
    assert pruned.removed
    assert old.id not in [job.id for job in cluster.jobs()]


@pytest.mark.slow
def test_an_environment_is_made_once(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(site.nodes_directory / "cache"))
    site.conf(ENGINE="none")
    index = site.directory / "index"
    tiny(index, "5.0")
    text = f"--no-index\n--find-links {index}\ntiny==5.0\n"
    workspace = site.workspace(LEAVE, **{"requirements.txt": text})
    with clusterctl.Cluster.from_conf(site.conf_path) as cluster:
        first, again = (cluster.setup(workspace, offline=True) for _ in range(2))
        assert (first.built, again.built) == ((0, 1), ())
        assert first.environments == again.environments
        assert [group["packages"] for group in again.document["environments"]] == [{"tiny": "5.0"}]
        with pytest.raises(clusterctl.ConfigError, match="does not exist"):
            cluster.setup(site.directory / "nowhere")


@pytest.fixture
def by_hand(site: Site) -> Iterator[list[Path]]:
    directories = [site.job_dir(BY_HAND, node) for node in range(2)]
    for node, directory in enumerate(directories):
        directory.mkdir(parents=True)
        directory.chmod(0o755)
        (directory / "train.py").write_text(LEAVE)
        (directory / "part.csv").write_text(f"of node {node}\n")
    yield directories
    for directory in directories:
        shutil.rmtree(directory, ignore_errors=True)


@pytest.mark.slow
@pytest.mark.usefixtures("by_hand")
def test_a_directory_deployed_by_hand_becomes_a_job(cluster: clusterctl.Cluster) -> None:
    job = cluster.adopt(f"~/clusterctl/{BY_HAND}")
    assert (job.id, job.state) == (BY_HAND, "dispatched")
    assert job.warnings == ("part.csv differs between nodes",)
    assert job.start().wait(timeout=WAIT_S).ok
