"""Whole jobs in pods, from `submit` to `stop --delete`."""

from __future__ import annotations

import pytest

from contract.e2e.programs import REGRESSION, SLEEP
from real.kubernetes.lab import IMAGE, Lab
from support.processes import processes_with_environment, wait_until

pytestmark = [pytest.mark.kubernetes, pytest.mark.timeout(400)]
SUBMIT = ("submit", "workspace", "--to", "kubernetes", "--image", IMAGE, "--nodes")


def test_every_command_works_and_stop_delete_removes_what_submit_has_made_and_nothing_else(lab: Lab) -> None:
    job = lab.submit(REGRESSION, "--", "--num_passes=2")
    lab.await_end(job)
    names = [pod["metadata"]["name"] for pod in lab.pods()]
    assert all(lab.cluster.execs[name] <= 3 for name in names)  # carriers of one command
    assert all(name.startswith("workspace-") for name in names)
    status = lab.status(job)
    assert status["state"] == "succeeded"
    assert [node["host"] for node in status["nodes"]] == names
    assert "end of pass 1 on trainer 1" in lab.ok("logs", job).out
    assert "nothing has failed" in lab.ok("why", job).out
    assert "nodes 0,1     kubectl ok, python" in lab.ok("check").out
    assert lab.ok("jobs", "--json").json()["jobs"][0]["job"] == job
    assert str(lab.home(lab.pods()[1]).resolve()) in lab.ok("exec", "--only", "node1", "--", "pwd", "-P").out
    lab.ok("collect", job, "-o", "results")
    assert (lab.directory / "results/model/model.safetensors").exists()
    kubectl_breaks_off(lab, job)
    others_have_the_same_labels(lab)


def kubectl_breaks_off(lab: Lab, job: str) -> None:
    """kubectl says that all is well; see test_kubectl.py."""
    lab.cluster.cuts = [100, 100]
    done = lab.run("jobs", "--json")
    assert done.code == 3
    assert {node["kind"] for node in done.json()["error"]["details"]["nodes"]} == {"unreachable"}
    assert "lost the connection to" in done.err
    lab.cluster.cuts = [3000]
    done = lab.run("exec", "--only", "node1", "--", "seq 5000; exit 3")
    assert done.code == 3
    assert "node1: 1\nnode1: 2\n" in done.out
    assert "lost the connection to" in done.err
    lab.cluster.cuts = [2000, 2000]
    lab.cluster.execs.clear()
    followed = lab.ok("logs", "-f", job)
    assert not lab.cluster.cuts
    assert set(lab.cluster.execs.values()) == {2}
    for line in (f"end of pass {number} on trainer {rank}" for number in range(2) for rank in range(2)):
        assert followed.out.count(line) == 1, followed.out


def others_have_the_same_labels(lab: Lab) -> None:
    """A second submission is refused, and `stop --delete` removes what submit has made and nothing else."""
    refused = lab.run(*SUBMIT, "1")
    assert refused.code == 4
    assert "there is already something with app=train" in refused.err
    assert len(lab.pods()) == 2
    service = {"apiVersion": "v1", "kind": "Service", "spec": {"clusterIP": "None"}}
    for name, labels in (("board", {"app": "train"}), ("other", {"clusterctl/submission": "00000000"})):
        lab.cluster.create("services", "default", {**service, "metadata": {"name": name, "labels": labels}})
    lab.ok("stop", "--delete")
    assert [one["metadata"]["name"] for one in lab.cluster.list("services", "default")] == ["board", "other"]
    refused = lab.run("stop", "--delete")
    assert refused.code == 4
    assert "clusterctl submit has made nothing of what has app=train" in refused.err
    assert "service/board" in refused.err
    for name in ("board", "other"):
        lab.cluster.delete("services", "default", name)
    assert lab.is_empty()


def test_a_detached_job_goes_on_in_its_pods_until_it_is_stopped_or_its_pods_are_deleted(lab: Lab) -> None:
    job = lab.submit(SLEEP)
    assert lab.status(job)["state"] == "running"
    lab.ok("stop", job)
    assert lab.status(job)["state"] == "stopped"
    again = lab.ok("start", "workspace", "--detach", "--json").json()["job"]
    lab.cluster.forbidden.add(("create", "pods/exec"))
    silent = lab.run("status", again)
    assert silent.code == 3
    assert "kubectl: this account may not run commands in the pod" in silent.out + silent.err
    deleted = lab.ok("stop", "--delete", "--json")
    assert "the job could not be stopped, and ends with its pods: " in deleted.err
    kinds = [name.partition("/")[0] for name in deleted.json()["deleted"]]
    assert kinds == ["statefulset", "service", "pod", "pod"]
    assert lab.is_empty()
    # They wait, for another test of this machine may have a job of the same second, and so of the same id.
    assert wait_until(lambda: not processes_with_environment("CLUSTERCTL_JOB", job, again))
    nothing = lab.ok("stop", "--delete")
    assert "nothing to delete: there is nothing with app=train" in nothing.out


def test_a_namespace_and_a_container_are_those_of_all_commands(lab: Lab) -> None:
    lab.conf('kubernetes("app=train", container="trainer")')
    lab.workspace(SLEEP)
    done = lab.ok(*SUBMIT, "1", "--namespace", "research")
    line = "HOSTS = kubernetes('app=train', namespace='research', container='trainer')"
    assert f"write into conf.py: {line}" in done.err
    assert len(lab.pods("research")) == 1
    lab.conf(line.partition(" = ")[2])
    status = lab.run("status", "--json").json()
    assert status["state"] == "running"
    deleted = lab.ok("stop", "--delete")
    assert "stopped: 1/1 nodes, 0 processes left" in deleted.out
    assert lab.is_empty()
    assert wait_until(lambda: not processes_with_environment("CLUSTERCTL_JOB", status["job"]))


def test_a_plan_that_somebody_changes_makes_pods_too(lab: Lab) -> None:
    lab.workspace(REGRESSION)
    plan = lab.ok(*SUBMIT, "2", "--plan").out
    assert not lab.pods()
    (lab.directory / "pods.yaml").write_text(plan.replace("replicas: 2", "replicas: 1"))
    created = lab.kubectl("create", "-f", "pods.yaml")
    assert created.code == 0, created.err
    (name,) = (pod["metadata"]["name"] for pod in lab.pods())
    assert wait_until(lambda: lab.address(name) is not None)
    lab.ok("start", "workspace")
    lab.ok("stop", "--delete")
    assert lab.is_empty()
