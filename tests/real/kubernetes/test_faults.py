"""What goes wrong with pods: one goes while it trains, none can be made, the account may not do what is needed."""

from __future__ import annotations

import dataclasses
import os
import signal
from collections.abc import Callable

import pytest

from clusterctl.errors import ConfigError, UnreachableError
from clusterctl.schedulers.kubernetes import submit
from clusterctl.schedulers.kubernetes.kubectl import Forbidden, Kubectl
from contract.e2e.programs import REGRESSION, SLEEP
from contract.e2e.test_new_address import TRAIN
from real.kubernetes.lab import IMAGE, Lab
from real.kubernetes.lab import SUBMISSION as ELEVEN
from support.processes import wait_until

pytestmark = [pytest.mark.kubernetes, pytest.mark.timeout(400)]
SUBMIT = ("submit", "workspace", "--to", "kubernetes", "--nodes", "2")
NONE = "0/1 nodes are available."
SUBMISSION = dataclasses.replace(ELEVEN, nodes=4)


def test_a_pod_that_is_deleted_is_a_lost_node_that_rejoins_when_it_is_back(lab: Lab) -> None:
    """It has a pserver as well as a trainer, and comes back with its disk and another address."""
    lab.conf(ON_TRAINER_LOSS="wait", SAVE_EVERY="2 steps")
    job = lab.submit(TRAIN, "--storage", "1Gi", nodes=3)
    assert wait_until((lab.job_dir(job) / "held").exists)
    name = lab.pods()[1]["metadata"]["name"]
    delete(lab, name)
    assert wait_until(lambda: '"event":"lost"' in lab.events(job))
    assert "the run is waiting for node1" in lab.ok("status", job).out
    rejoined = lab.ok("start", "--rejoin", "--only", "node1", "--job_workspace", job)
    assert "node1 has rejoined run 1" in rejoined.out
    (lab.job_dir(job) / "go").touch()
    lab.await_end(job)
    delete(lab, *(pod["metadata"]["name"] for pod in lab.pods()))
    assert lab.status(job)["state"] == "succeeded"
    done = lab.ok("stop", "--delete")
    assert "3 pods and 3 disks (persistentvolumeclaim), with all jobs and models on them" in done.out
    assert lab.is_empty()
    assert not list((lab.directory / "cluster/disks/default").iterdir())


def delete(lab: Lab, *names: str) -> None:
    """Delete pods, and wait until they are back with other addresses."""
    before = {name: lab.address(name) for name in names}
    assert lab.kubectl("delete", "pods", *names, "--wait=false").code == 0
    assert wait_until(lambda: all(lab.address(name) not in (None, before[name]) for name in names))


def test_a_container_that_restarts_can_rejoin_and_a_pod_that_comes_back_without_a_disk_cannot(lab: Lab) -> None:
    lab.conf(ON_TRAINER_LOSS="wait")
    job = lab.submit(SLEEP, nodes=3)
    name = lab.pods()[1]["metadata"]["name"]
    lab.cluster.restart_container("default", name)
    assert wait_until(lambda: '"event":"lost"' in lab.events(job))
    assert "node1 has rejoined run 1" in lab.ok("start", "--rejoin", "--only", "node1").out
    lab.cluster.quota = 2
    assert lab.kubectl("delete", "pod", name, "--wait=false").code == 0
    assert wait_until(lambda: len(lab.pods()) == 2)
    status = lab.run("status", job, "--json").json()
    assert [node["ok"] for node in status["nodes"]] == [True, False, True]  # the others keep their ids
    assert status["nodes"][1]["error"]["message"] == f"kubectl: there is no pod {name}"
    lab.cluster.make_room()
    assert wait_until(lambda: lab.address(name) is not None)
    refused = lab.run("start", "--rejoin", "--only", "node1", "--job_workspace", job)
    assert refused.code == 2
    assert f"there is no job {job}" in refused.err
    lab.ok("stop", "--delete")
    assert lab.is_empty()


def test_an_image_that_cannot_be_pulled_ends_submit_which_leaves_nothing(lab: Lab) -> None:
    lab.workspace(REGRESSION)
    done = lab.run(*SUBMIT, "--image", "registry.example.org/missing:1", "--storage", "1Gi")
    assert done.code == 3
    assert "2 of 2 pods are not ready" in done.err
    assert 'ImagePullBackOff: Back-off pulling image "registry.example.org/missing:1"' in done.err
    assert lab.is_empty()


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


@dataclasses.dataclass
class Maker:
    """Makes four pods as `submit` does. `told` is what it tells, with a ! before warnings; then it calls `then`."""

    lab: Lab
    told: list[str] = dataclasses.field(default_factory=list)
    then: Callable[[], None] = lambda: None

    def __call__(self, limit_s: float = 60, namespace: str | None = None) -> None:
        submission = dataclasses.replace(SUBMISSION, namespace=namespace)
        kubectl = Kubectl(self.lab.environment, namespace)
        submit.make_ready(kubectl, submission, self.tell, lambda line: self.told.append(f"! {line}"), limit_s=limit_s)

    def tell(self, line: str) -> None:
        self.told.append(line)
        self.then()


@pytest.fixture
def make(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> Maker:
    monkeypatch.setattr(submit, "POLL_S", 0.1)
    monkeypatch.setattr(submit, "MOST_POLL_S", 0.1)
    return Maker(lab)


def test_pods_without_room_or_on_a_faulty_machine_are_waited_for_while_others_are_ready(lab: Lab, make: Maker) -> None:
    lab.cluster.capacity = 2
    lab.cluster.broken.add(f"{SUBMISSION.name}-0")
    problems = [
        f'{SUBMISSION.name}-0: ImagePullBackOff: Back-off pulling image "{IMAGE}"',
        f"{SUBMISSION.name}-3: Pending: 0/1 nodes are available: 1 Insufficient cpu. preemption: {NONE}",
    ]
    with pytest.raises(UnreachableError) as caught:
        make(limit_s=6)
    assert caught.value.message.splitlines() == [
        "2 of 4 pods are not ready after 6 s",
        *(f"  {line}" for line in problems),
    ]
    assert make.told == [*problems, f"removing what was made for {SUBMISSION.name}"]
    assert lab.is_empty()


def test_pods_that_find_room_later_become_ready_though_the_api_server_is_away_for_a_moment(
    lab: Lab, make: Maker
) -> None:
    def later() -> None:
        lab.cluster.failures = 4  # two requests each time
        lab.cluster.make_room()

    lab.cluster.capacity, make.then = 3, later
    make()
    assert len(lab.pods()) == 4
    assert make.told


def test_events_say_why_pods_are_not_made(lab: Lab, make: Maker) -> None:
    lab.cluster.quota = 1
    with pytest.raises(UnreachableError, match="3 of 4 pods are not ready after 4 s"):
        make(limit_s=4)
    assert any("FailedCreate: create Pod" in line and "exceeded quota: small" in line for line in make.told)
    lab.cluster.forbidden.add(("list", "events"))
    with pytest.raises(UnreachableError, match="Absent"):
        make(limit_s=0)
    assert lab.is_empty()


def test_an_account_that_may_make_only_a_part_makes_nothing(lab: Lab, make: Maker) -> None:
    lab.cluster.forbidden.add(("create", "statefulsets"))
    with pytest.raises(Forbidden, match="cannot create resource"):
        make()
    assert lab.is_empty()


def test_what_cannot_be_removed_again_is_told(lab: Lab, make: Maker) -> None:
    lab.cluster.capacity = 0
    lab.cluster.forbidden.add(("delete", "statefulsets"))
    with pytest.raises(UnreachableError, match="4 of 4 pods are not ready"):
        make(limit_s=0)
    assert make.told[-1].startswith(f"! not everything of {SUBMISSION.name} was removed: this account may not do")
    assert make.told[-1].endswith("\n  to remove the rest: clusterctl stop --delete")
    lab.cluster.forbidden.clear()
    lab.ok("stop", "--delete")
    assert lab.is_empty()


def test_a_namespace_that_is_not_there_ends_submit(make: Maker) -> None:
    with pytest.raises(ConfigError, match="there is no namespace nowhere"):
        make(namespace="nowhere")
