"""Which pods are the nodes, in which order, and why one is not ready."""

from __future__ import annotations

from typing import Any

import pytest

from clusterctl.schedulers.kubernetes.pods import Pod, PodProblem, members, parse_pod, parse_set, problem_lines


def pod(name: str, owner: str | None = None, *, status: Any = None, **meta: Any) -> Pod:
    owners = [{"kind": "StatefulSet", "name": owner}] if owner else []
    given = {"name": name, "namespace": "default", "ownerReferences": owners, **meta}
    return parse_pod({"metadata": given, "spec": {"containers": [{"name": "main"}]}, "status": status or {}})


def stateful_set(name: str, replicas: int, **spec: Any) -> Any:
    template = {"spec": {"containers": [{"name": "main"}]}}
    return parse_set(
        {
            "metadata": {"name": name, "namespace": "default"},
            "spec": {"replicas": replicas, "template": template, **spec},
        }
    )


def test_the_pods_of_a_stateful_set_are_in_the_order_of_their_numbers() -> None:
    pods = [pod(f"train-{number}", "train") for number in (10, 2, 0, 1, 9, 3, 8, 4, 7, 5, 6)]
    assert members(pods, [stateful_set("train", 11)]) == [f"train-{number}" for number in range(11)]


def test_a_pod_that_is_absent_keeps_its_place() -> None:
    pods = [pod("train-0", "train"), pod("train-2", "train")]
    assert members(pods, [stateful_set("train", 4)]) == ["train-0", "train-1", "train-2", "train-3"]
    assert members([], [stateful_set("train", 2)]) == ["train-0", "train-1"]


def test_a_pod_beyond_the_replicas_is_on_its_way_out() -> None:
    pods = [pod(f"train-{number}", "train") for number in range(3)]
    assert members(pods, [stateful_set("train", 2)]) == ["train-0", "train-1"]


def test_several_sets_and_other_pods_are_in_the_order_of_their_names() -> None:
    pods = [pod("b-0", "b"), pod("a-1", "a"), pod("a-0", "a"), pod("alone"), pod("done", status={"phase": "Succeeded"})]
    assert members(pods, [stateful_set("a", 2)]) == ["a-0", "a-1", "alone", "b-0"]


def test_the_container_is_the_default_one_or_the_only_one() -> None:
    def container(*names: str, **annotations: str) -> str | None:
        spec = {"containers": [{"name": name} for name in names]}
        return parse_pod({"metadata": {"name": "a", "annotations": annotations}, "spec": spec}).container

    assert container("main") == "main"
    assert container("proxy", "main") is None
    assert container("proxy", "main", **{"kubectl.kubernetes.io/default-container": "main"}) == "main"


READY = [{"type": "Ready", "status": "True"}]
UNREADY = [{"type": "PodScheduled", "status": "True"}, {"type": "Ready", "status": "False"}]
MESSAGE = "0/3 nodes are available: 3 Insufficient cpu."


def waiting(reason: str, message: str = "", **more: Any) -> Any:
    return {"name": "main", "state": {"waiting": {"reason": reason, "message": message}}, **more}


NO_SHELL = 'exec: "/bin/sh": stat /bin/sh: no such file or directory'
STATES = [
    ({"phase": "Running", "conditions": READY, "podIP": "10.0.0.1"}, None),
    ({"phase": "Pending"}, "Pending"),
    ({}, "Pending"),
    (
        {"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "False", "message": MESSAGE}]},
        f"Pending: {MESSAGE}",
    ),
    (
        {"phase": "Pending", "conditions": UNREADY, "containerStatuses": [waiting("ContainerCreating")]},
        "ContainerCreating",
    ),
    (
        {
            "phase": "Pending",
            "conditions": UNREADY,
            "initContainerStatuses": [waiting("ImagePullBackOff", 'Back-off pulling image "x"')],
            "containerStatuses": [waiting("PodInitializing")],
        },
        'ImagePullBackOff: Back-off pulling image "x"',
    ),
    (
        {
            "phase": "Running",
            "containerStatuses": [
                waiting(
                    "CrashLoopBackOff", "back-off 20s", lastState={"terminated": {"exitCode": 127, "message": NO_SHELL}}
                )
            ],
        },
        f"CrashLoopBackOff: {NO_SHELL}",
    ),
    (
        {
            "phase": "Running",
            "containerStatuses": [
                waiting("CrashLoopBackOff", "back-off 20s", lastState={"terminated": {"exitCode": 1}})
            ],
        },
        "CrashLoopBackOff: its command exited with code 1",
    ),
    (
        {
            "phase": "Running",
            "containerStatuses": [{"state": {"terminated": {"reason": "OOMKilled", "exitCode": 137}}}],
        },
        "OOMKilled: its command exited with code 137",
    ),
    ({"phase": "Failed", "reason": "Evicted", "message": "low on memory"}, "Evicted: low on memory"),
]


@pytest.mark.parametrize(("status", "problem"), STATES)
def test_why_a_pod_is_not_ready(status: Any, problem: str | None) -> None:
    found = pod("train-0", "train", status=status).problem
    assert (None if found is None else str(found)) == problem


def test_a_pod_that_is_being_deleted_is_not_ready() -> None:
    status = {"phase": "Running", "conditions": READY}
    assert pod("train-0", "train", status=status, deletionTimestamp="2026-11-24T00:00:00Z").problem == (
        "Terminating",
        "",
    )


def test_what_every_pod_goes_through_is_known() -> None:
    usual = (
        PodProblem("Absent"),
        PodProblem("Pending"),
        PodProblem("ContainerCreating"),
        PodProblem("PodInitializing"),
    )
    assert all(problem.is_on_its_way for problem in usual)
    others = (
        PodProblem("Pending", MESSAGE),
        PodProblem("ErrImagePull"),
        PodProblem("Error", "exit 1"),
        PodProblem("Terminating"),
    )
    assert not any(problem.is_on_its_way for problem in others)


def test_pods_with_the_same_problem_share_a_line() -> None:
    problems = {f"train-{number}": PodProblem("Pending", MESSAGE) for number in range(11)}
    problems["train-2"] = PodProblem("ContainerCreating")
    assert problem_lines(problems) == [
        f"train-0, train-1, train-3 and 7 more: Pending: {MESSAGE}",
        "train-2: ContainerCreating",
    ]
