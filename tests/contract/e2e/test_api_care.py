"""The Python API looks after nodes, and turns runs into files, as the commands do."""

from __future__ import annotations

import pytest

import clusterctl
from contract.e2e.programs import LEAVE, REGRESSION, SLEEP
from support.site import Site
from support.wheels import tiny

pytestmark = [pytest.mark.nodes(2), pytest.mark.slow]
WAIT_S = 120.0


@pytest.mark.nodes(1)
def test_runs_are_saved_become_files_and_are_compared(site: Site, cluster: clusterctl.Cluster) -> None:
    job = cluster.dispatch(site.workspace(REGRESSION))
    first = job.start(["--num_passes=100000"], timeout=WAIT_S)
    next(event for event in first.events() if isinstance(event, clusterctl.Step))
    checkpoint = first.save(timeout=WAIT_S)
    assert checkpoint.step == int(checkpoint.tag.removeprefix("step-")) > 0
    first.stop()
    with pytest.raises(clusterctl.RefusedError):
        first.save()
    second = job.start(["--num_passes=2"], name="longer")
    assert second.wait(timeout=WAIT_S).ok
    found = first.diff(second)
    assert found.errors == ()
    assert ("arguments", "--num_passes", "100000", "2") in [(d.section, d.name, d.a, d.b) for d in found.differences]
    assert found.document["b"]["run"] == "0002"
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


@pytest.mark.nodes(1)
def test_nodes_are_checked_and_old_jobs_go(site: Site, cluster: clusterctl.Cluster) -> None:
    checked = cluster.check()
    assert [finding for finding in checked.findings if finding.blocks] == []
    assert checked.ok
    assert [node["node"] for node in checked.document["nodes"]] == [0]
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


@pytest.mark.nodes(1)
def test_an_environment_is_made_once(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(site.nodes_directory / "cache"))
    site.conf(ENGINE="none")
    index = site.directory / "index"
    tiny(index, "5.0")
    text = f"--no-index\n--find-links {index}\ntiny==5.0\n"
    workspace = site.workspace(LEAVE, **{"requirements.txt": text})
    with clusterctl.Cluster.from_conf(site.conf_path) as cluster:
        first, again = (cluster.setup(workspace, offline=True) for _ in range(2))
        assert (first.built, again.built) == ((0,), ())
        assert first.environments == again.environments
        assert [group["packages"] for group in again.document["environments"]] == [{"tiny": "5.0"}]
        with pytest.raises(clusterctl.ConfigError, match="does not exist"):
            cluster.setup(site.directory / "nowhere")
