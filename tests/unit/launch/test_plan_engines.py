"""The processes of each engine, and their commands."""

from __future__ import annotations

from typing import Any

import pytest

from clusterctl.config import from_values
from clusterctl.inventory import build
from clusterctl.launch import LaunchPlan, plan

TRAIN, SERVE = ("python3", "train.py", "--a=1"), ("./serve", "now")


def launch(engine: str, **values: Any) -> LaunchPlan:
    settings = from_values({"HOSTS": ["10.0.0.1", "10.0.0.2"], "ENGINE": engine, **values})
    return plan(settings, build(settings), ["--a=1"])


def commands(launch: LaunchPlan) -> dict[str, set[tuple[str, ...]]]:
    """Return the commands by role."""
    by_role: dict[str, set[tuple[str, ...]]] = {}
    for process in launch.processes:
        by_role.setdefault(process.role, set()).add(process.argv)
    return by_role


@pytest.mark.parametrize(
    ("engine", "wanted"),
    [
        ("paddle", {"pserver": {TRAIN}, "trainer": {TRAIN}}),
        ("dmlc", {"scheduler": {TRAIN}, "pserver": {TRAIN}, "trainer": {TRAIN}}),
        ("torch", {"trainer": {TRAIN}}),
        ("mpi", {"trainer": {TRAIN}}),
        ("tensorflow", {"trainer": {TRAIN}}),
        ("none", {"trainer": {TRAIN}}),
    ],
)
def test_roles_of_each_engine_without_a_command_for_pservers(
    engine: str, wanted: dict[str, set[tuple[str, ...]]]
) -> None:
    assert commands(launch(engine)) == wanted


@pytest.mark.parametrize("engine", ["clusterctl", "paddle", "torch"])
def test_with_a_command_for_pservers_they_run_it_and_none_is_ours(engine: str) -> None:
    made = launch(engine, PSERVER_COMMAND="./serve now")
    assert commands(made)["pserver"] == {SERVE}
    assert commands(made)["trainer"] == {TRAIN}
    assert not any(process.ours for process in made.processes)


def test_there_is_one_scheduler_on_the_first_node_that_takes_part() -> None:
    made = launch("dmlc")
    for part, node in ((made, 0), (made.among([1]), 1)):
        assert [process.node for process in part.processes if process.role == "scheduler"] == [node]


def test_the_plan_of_a_paddle_job_shows_where_its_processes_meet() -> None:
    described = launch("paddle").describe("JOB")
    assert {one["env"]["PADDLE_GLOO_HTTP_ENDPOINT"].partition(":")[0] for one in described} == {"10.0.0.1"}


def test_the_plan_shows_that_blas_threads_are_divided_by_the_threads_of_a_trainers_program() -> None:
    described = launch("clusterctl", TRAINER_THREADS=3).describe("JOB")
    shown = {(one["node"], one["role"]): one["env"]["OMP_NUM_THREADS"].rpartition("/")[2] for one in described}
    assert shown == {(0, "pserver"): " 2)", (0, "trainer"): " 6)", (1, "pserver"): " 2)", (1, "trainer"): " 6)"}


def test_nodes_have_no_ranks_of_nonexistent_pservers() -> None:
    assert [node.pserver_ranks for node in launch("torch").nodes] == [(), ()]
    assert [node.pserver_ranks for node in launch("paddle").nodes] == [(0,), (1,)]
