"""What goes wrong with pods: one is deleted while it trains, none can be made, kubectl is cut off."""

from __future__ import annotations

import os
import signal

import pytest

from clusterctl.errors import UnreachableError
from clusterctl.schedulers.kubernetes.kubectl import Forbidden, Kubectl
from clusterctl.schedulers.kubernetes.manifest import Submission
from clusterctl.schedulers.kubernetes.submit import make_ready
from e2e.programs import REGRESSION, SLEEP
from e2e.test_new_address import TRAIN
from kubernetes.lab import IMAGE, Lab
from kubernetes.test_jobs import bits
from support.processes import processes_with_environment, wait_until

pytestmark = pytest.mark.kubernetes
SUBMIT = ("submit", "workspace", "--to", "kubernetes", "--nodes", "2")
SUBMISSION = Submission("0a1b2c3d", "train-0a1b2c3d", IMAGE, 4, {"app": "train"})


def model(lab: Lab, job: str) -> dict[str, bytes]:
    lab.ok("collect", job, "-o", job)
    return bits(lab.directory / job / "model")


@pytest.mark.timeout(400)
def test_a_pod_that_is_deleted_is_a_lost_node_that_rejoins_when_it_is_back(lab: Lab) -> None:
    """It has a pserver as well as a trainer, and comes back with another address."""
    lab.conf(ON_TRAINER_LOSS="wait", SAVE_EVERY="2 steps")
    job = lab.submit(TRAIN, "--storage", "1Gi", nodes=3)
    lead, pod, _ = lab.pods()
    held, go = (lab.disk(lead) / "clusterctl" / job / name for name in ("held", "go"))
    assert wait_until(held.exists)
    name, before = pod["metadata"]["name"], pod["status"]["podIP"]
    assert lab.kubectl("delete", "pod", name, "--wait=false").code == 0
    events = lab.disk(lead) / "clusterctl" / job / ".clusterctl/runs/0001/events.jsonl"
    assert wait_until(lambda: '"event":"lost"' in events.read_text())
    assert wait_until(lambda: lab.address(name) not in (None, before))
    assert "the run is waiting for node1" in lab.ok("status", job).out
    rejoined = lab.ok("start", "--rejoin", "--only", "node1", "--job_workspace", job)
    assert "node1 has rejoined run 1" in rejoined.out
    go.touch()
    assert wait_until(lambda: lab.status(job)["state"] == "succeeded", 100), lab.run("why", job).out
    disturbed = model(lab, job)
    lab.workspace(TRAIN + "\n# another job\n")
    again = lab.ok("dispatch", "workspace", "--json").json()["job"]
    (lab.disk(lead) / "clusterctl" / again / "go").touch()
    lab.ok("start", "--job_workspace", again)
    assert model(lab, again) == disturbed
    lab.ok("stop", "--delete")


def test_a_pod_without_a_disk_comes_back_empty_and_cannot_rejoin(lab: Lab) -> None:
    lab.conf(ON_TRAINER_LOSS="wait")
    job = lab.submit(SLEEP, nodes=2)
    name, before = (lab.pods()[1]["metadata"]["name"], lab.pods()[1]["status"]["podIP"])
    lab.kubectl("delete", "pod", name, "--wait=false")
    assert wait_until(lambda: lab.address(name) not in (None, before))
    refused = lab.run("start", "--rejoin", "--only", "node1", "--job_workspace", job)
    assert refused.code == 2
    assert f"there is no job {job}" in refused.err
    lab.ok("stop", "--delete")
    assert lab.is_empty()


def test_while_a_pod_is_away_the_others_keep_their_ids(lab: Lab) -> None:
    job = lab.submit(SLEEP, nodes=3)
    lab.cluster.quota = 2
    name = lab.pods()[1]["metadata"]["name"]
    lab.kubectl("delete", "pod", name, "--wait=false")
    assert wait_until(lambda: len(lab.pods()) == 2)
    status = lab.run("status", job, "--json").json()
    assert [node["ok"] for node in status["nodes"]] == [True, False, True]
    error = status["nodes"][1]["error"]["message"]
    assert error == f"kubectl: there is no pod {name}"
    lab.ok("stop", "--delete")


def test_an_image_that_cannot_be_pulled_ends_submit_which_leaves_nothing(lab: Lab) -> None:
    lab.workspace(REGRESSION)
    done = lab.run(*SUBMIT, "--image", "registry.example.org/missing:1", "--storage", "1Gi")
    assert done.code == 3
    assert "2 of 2 pods are not ready" in done.err
    assert 'ImagePullBackOff: Back-off pulling image "registry.example.org/missing:1"' in done.err
    assert wait_until(lab.is_empty, 10)


def test_pods_without_room_are_waited_for_and_then_named(lab: Lab) -> None:
    lab.cluster.capacity = 3
    told: list[str] = []
    with pytest.raises(
        UnreachableError, match=r"1 of 4 pods are not ready after 2 s(.|\n)*Pending: .*Insufficient cpu"
    ):
        make_ready(Kubectl(lab.environment), SUBMISSION, told.append, limit_s=2, poll_s=0.1)
    assert any("Pending: 0/1 nodes are available: 1 Insufficient cpu." in line for line in told)
    assert told[-1] == "removing what was made for train-0a1b2c3d"
    assert lab.is_empty()


def test_events_say_why_pods_are_not_made(lab: Lab) -> None:
    lab.cluster.quota = 1
    told: list[str] = []
    with pytest.raises(UnreachableError, match="3 of 4 pods are not ready after 2 s"):
        make_ready(Kubectl(lab.environment), SUBMISSION, told.append, limit_s=2, poll_s=0.1)
    assert any("FailedCreate: create Pod" in line and "exceeded quota: small" in line for line in told)
    lab.cluster.forbidden.add(("list", "events"))
    with pytest.raises(UnreachableError, match="Absent"):
        make_ready(Kubectl(lab.environment), SUBMISSION, told.append, limit_s=1, poll_s=0.1)
    assert lab.is_empty()


def test_an_account_that_may_make_only_a_part_makes_nothing(lab: Lab) -> None:
    lab.cluster.forbidden.add(("create", "statefulsets"))
    with pytest.raises(Forbidden, match="cannot create resource"):
        make_ready(Kubectl(lab.environment), SUBMISSION, print, poll_s=0.1)
    assert lab.is_empty()


def test_a_namespace_that_is_not_there_ends_submit(lab: Lab) -> None:
    lab.workspace(REGRESSION)
    done = lab.run(*SUBMIT, "--image", IMAGE, "--namespace", "nowhere")
    assert done.code == 2
    assert "there is no namespace nowhere" in done.err


def test_ctrl_c_while_pods_are_waited_for_leaves_nothing(lab: Lab) -> None:
    lab.workspace(REGRESSION)
    lab.cluster.capacity = 0
    with lab.popen(*SUBMIT, "--image", IMAGE, start_new_session=True) as process:
        assert wait_until(lambda: len(lab.pods()) == 2)
        os.killpg(process.pid, signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "removing what was made" in err
    assert lab.is_empty()


def test_an_account_that_may_not_run_commands_in_pods_is_told(lab: Lab) -> None:
    job = lab.submit(SLEEP)
    lab.cluster.forbidden.add(("create", "pods/exec"))
    done = lab.run("status", job)
    assert done.code == 3
    assert "kubectl: this account may not run commands in the pod" in done.out + done.err
    deleted = lab.ok("stop", "--delete")
    assert "nothing was stopped before: " in deleted.err
    assert lab.is_empty()
    assert not processes_with_environment("CLUSTERCTL_JOB", job)


def test_without_kubectl_a_command_names_what_is_missing(lab: Lab) -> None:
    done = lab.run("status", PATH="/nonexistent")
    assert done.code == 2
    assert "cannot run kubectl: No such file or directory" in done.err


def test_output_that_breaks_off_is_an_error_though_kubectl_says_that_all_is_well(lab: Lab) -> None:
    job = lab.submit(REGRESSION)
    assert wait_until(lambda: lab.status(job)["state"] == "succeeded")
    lab.cluster.cut_after = 100
    done = lab.run("jobs", "--json")
    assert done.code == 3
    kinds = {node["kind"] for node in done.json()["error"]["details"]["nodes"]}
    assert kinds == {"unreachable"}
    assert "lost the connection to" in done.err
    lab.cluster.cut_after = None
    lab.ok("stop", "--delete")
