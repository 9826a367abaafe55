"""Whole jobs in pods, from `submit` to `stop --delete`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from clusterctl.runtime import load_model
from clusterctl.templates import copy_workspace
from e2e.programs import REGRESSION, SLEEP
from kubernetes.lab import IMAGE, Lab
from support.processes import processes_with_environment, wait_until

pytestmark = pytest.mark.kubernetes


def test_every_command_works_from_submit_to_the_end(lab: Lab) -> None:
    job = lab.submit(REGRESSION, "--", "--num_passes=2")
    assert wait_until(lambda: lab.status(job)["state"] == "succeeded")
    names = [pod["metadata"]["name"] for pod in lab.pods()]
    assert [node["host"] for node in lab.status(job)["nodes"]] == names
    assert all(name.startswith("workspace-") for name in names)
    assert "end of pass 1 on trainer 1" in lab.ok("logs", job).out
    assert "nodes 0,1     kubectl ok, python" in lab.ok("check").out
    assert lab.ok("jobs", "--json").json()["jobs"][0]["job"] == job
    assert str(lab.home(lab.pods()[1]).resolve()) in lab.ok("exec", "--only", "node1", "--", "pwd", "-P").out
    lab.ok("collect", job, "-o", "results")
    assert (lab.directory / "results/model/model.safetensors").exists()
    lab.ok("stop", "--delete")
    assert lab.is_empty()
    assert not processes_with_environment("CLUSTERCTL_JOB", job)


def test_a_detached_job_goes_on_in_its_pods_and_stop_ends_it(lab: Lab) -> None:
    job = lab.submit(SLEEP)
    assert lab.status(job)["state"] == "running"
    assert lab.run("stop", job).code == 0
    assert lab.status(job)["state"] == "stopped"
    again = lab.ok("start", "workspace", "--detach", "--json").json()["job"]
    deleted = lab.ok("stop", "--delete", "--json").json()["deleted"]
    kinds = [name.partition("/")[0] for name in deleted]
    assert kinds == ["statefulset", "service", "pod", "pod"]
    assert lab.is_empty()
    assert not processes_with_environment("CLUSTERCTL_JOB", job, again)
    nothing = lab.ok("stop", "--delete")
    assert "nothing to delete: there is nothing with app=train" in nothing.out


def test_disks_stay_while_pods_go_and_stop_delete_says_that_it_deletes_them(lab: Lab) -> None:
    job = lab.submit(REGRESSION, "--storage", "1Gi")
    assert wait_until(lambda: lab.status(job)["state"] == "succeeded")
    before = {pod["metadata"]["name"]: pod["status"]["podIP"] for pod in lab.pods()}
    for pod in lab.pods():
        assert (lab.disk(pod) / "clusterctl" / job).is_dir()
    assert lab.kubectl("delete", "pods", "--selector=app=train", "--wait=false").code == 0
    assert wait_until(lambda: all(lab.address(name) not in (None, before[name]) for name in before))
    assert lab.status(job)["state"] == "succeeded"
    done = lab.ok("stop", "--delete")
    assert "2 pods and 2 disks (persistentvolumeclaim), with all jobs and models on them" in done.out
    assert lab.is_empty()
    assert not list((lab.directory / "cluster/disks/default").iterdir())


def test_stop_delete_removes_what_submit_has_made_and_nothing_else(lab: Lab) -> None:
    lab.submit(SLEEP)
    service = {"apiVersion": "v1", "kind": "Service", "spec": {"clusterIP": "None"}}
    for name, labels in (("board", {"app": "train"}), ("other", {"clusterctl/submission": "00000000"})):
        lab.cluster.create("services", "default", {**service, "metadata": {"name": name, "labels": labels}})
    lab.ok("stop", "--delete")
    assert [one["metadata"]["name"] for one in lab.cluster.list("services", "default")] == ["board", "other"]
    refused = lab.run("stop", "--delete")
    assert refused.code == 4
    assert "clusterctl submit has made nothing of what has app=train" in refused.err
    assert "service/board" in refused.err


def test_a_second_submission_with_the_same_labels_is_refused(lab: Lab) -> None:
    lab.submit(SLEEP, nodes=1)
    refused = lab.run("submit", "workspace", "--to", "kubernetes", "--nodes", "1", "--image", IMAGE)
    assert refused.code == 4
    assert "there is already something with app=train" in refused.err
    assert len(lab.pods()) == 1
    lab.ok("stop", "--delete")


def test_a_namespace_may_be_in_conf_py_or_on_the_command_line(lab: Lab) -> None:
    lab.conf('kubernetes("app=train", namespace="research", container="trainer")')
    job = lab.submit(SLEEP, nodes=1)
    assert len(lab.pods("research")) == 1
    assert lab.status(job)["state"] == "running"
    lab.ok("stop", "--delete")
    package = ("submit", "workspace", "--to", "kubernetes", "--nodes", "1", "--image", IMAGE)
    contrary = lab.run(*package, "--namespace", "default")
    assert contrary.code == 2
    assert "--namespace default: HOSTS has the namespace research" in contrary.err
    lab.conf()
    done = lab.ok(*package, "--namespace", "research")
    assert "write into conf.py: HOSTS = kubernetes('app=train', namespace='research')" in done.err
    assert len(lab.pods("research")) == 1
    lab.conf('kubernetes("app=train", namespace="research")')
    lab.ok("stop", "--delete")
    assert lab.is_empty()


def test_a_plan_that_somebody_changes_makes_pods_too(lab: Lab) -> None:
    lab.workspace(REGRESSION)
    plan = lab.ok("submit", "workspace", "--to", "kubernetes", "--nodes", "2", "--image", IMAGE, "--plan").out
    assert not lab.pods()
    (lab.directory / "pods.yaml").write_text(plan.replace("replicas: 2", "replicas: 1"))
    created = lab.kubectl("create", "-f", "pods.yaml")
    assert created.code == 0, created.err
    assert wait_until(lambda: lab.run("exec", "--", "true").code == 0)
    lab.ok("start", "workspace")
    lab.ok("stop", "--delete")
    assert lab.is_empty()


@pytest.mark.timeout(400)
def test_the_demo_trains_the_same_tensors_in_pods_as_on_this_machine(lab: Lab) -> None:
    workspace = lab.directory / "ngram"
    copy_workspace(workspace)
    prepare = [sys.executable, "prepare_data.py", "--shards", "2"]
    subprocess.run(prepare, cwd=workspace, check=True, capture_output=True, timeout=100)
    shards = ["train.txt-*", "test.txt-*"]
    lab.conf('["a", "b"]', VIA="local", ROOT_DIR=f"{lab.directory}/here/node{{node}}", SHARDS=shards)
    expected = trained(
        lab, lab.ok("start", "ngram", "--detach", "--json", "--", "--num_passes=1").json()["job"], "here"
    )
    lab.conf(SHARDS=shards)
    options = ("--to", "kubernetes", "--nodes", "2", "--image", IMAGE, "--json", "--", "--num_passes=1")
    model = trained(lab, json.loads(lab.ok("submit", "ngram", *options).out)["job"], "pods")
    assert sorted(model) == sorted(expected)
    assert [name for name in model if model[name] != expected[name]] == []


def trained(lab: Lab, job: str, home: str) -> dict[str, bytes]:
    """Wait for the end of a job and collect it; return the bits of the model."""
    assert wait_until(lambda: lab.status(job)["state"] == "succeeded", 150), lab.run("logs", job).out
    lab.ok("collect", job, "-o", f"results-{home}")
    return bits(lab.directory / f"results-{home}" / "model")


def bits(path: Path) -> dict[str, bytes]:
    return {
        name: b"".join(part.tobytes() for part in (table if isinstance(table, tuple) else (table,)))
        for name, table in load_model(path).items()
    }
