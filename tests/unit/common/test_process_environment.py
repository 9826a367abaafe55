"""The environment of a started process, computed by a pure function."""

from __future__ import annotations

from typing import Any

import pytest

from clusterctl.common.process_environment import LaunchFacts, environment, inherited
from unit.agent.specs import make_process, make_spec

PROCESS = {"role": "trainer", "rank": 2, "index": 0}
SPEC: dict[str, Any] = {
    "job": "JOB20261121-081530",
    "run": "0001",
    "node": 1,
    "engine": "clusterctl",
    "trainers": 3,
    "port": 7164,
    "ports_num": 2,
    "ports_num_for_sparse": 1,
    "use_gpu": False,
    "pserver_hosts": ["10.0.0.1", "10.0.0.2"],
    "ld_library_path": None,
    "env": {},
    "processes": [PROCESS, PROCESS],
}
TRAINER = make_process("trainer", 2)
FACTS = LaunchFacts("/jobs/J", "/lib/D", 8, ("10.0.0.1:7164", "10.0.0.2:7164"), "7", {"PATH": "/bin"})


def made(spec: dict[str, Any] | None = None, facts: dict[str, Any] | None = None, **process: Any) -> dict[str, str]:
    return environment(
        make_spec(**{**SPEC, **(spec or {})}), TRAINER.replace(**process), FACTS._replace(**(facts or {}))
    )


def test_our_names_and_those_of_the_old_launcher_are_set() -> None:
    env = made()
    wanted = {
        "CLUSTERCTL_JOB_DIR": "/jobs/J",
        "CLUSTERCTL_OUTPUT_DIR": "/jobs/J/output",
        "CLUSTERCTL_NODE_ID": "1",
        "CLUSTERCTL_ROLE": "trainer",
        "CLUSTERCTL_RANK": "2",
        "CLUSTERCTL_TRAINERS": "3",
        "CLUSTERCTL_PSERVERS": "10.0.0.1:7164,10.0.0.2:7164",
        "CLUSTERCTL_CONTROL_FD": "7",
        "PADDLE_INIT_TRAINER_ID": "2",
        "PADDLE_INIT_PSERVERS": "10.0.0.1,10.0.0.2",
        "PADDLE_INIT_NUM_GRADIENT_SERVERS": "3",
        "TRAINING_ROLE": "TRAINER",
        "PATH": "/bin",
    }
    assert {name: env.get(name) for name in wanted} == wanted
    assert all(isinstance(value, str) for value in env.values())


def test_the_users_variables_override_inherited_ones_but_not_ours() -> None:
    env = made({"env": {"PATH": "/mine", "CLUSTERCTL_RANK": "99", "A": "b c"}})
    assert (env["PATH"], env["CLUSTERCTL_RANK"], env["A"]) == ("/mine", "2", "b c")


@pytest.mark.parametrize(
    ("inherited", "user", "path"),
    [
        ({"PYTHONPATH": "/theirs"}, {}, "/lib/D:/theirs"),
        ({"PYTHONPATH": "/theirs"}, {"PYTHONPATH": "/mine:/more"}, "/lib/D:/mine:/more"),
        ({"PYTHONPATH": ""}, {}, "/lib/D"),
    ],
)
def test_the_shipped_runtime_is_found_first(inherited: dict[str, str], user: dict[str, str], path: str) -> None:
    assert made({"env": user}, {"inherited": inherited})["PYTHONPATH"] == path


@pytest.mark.parametrize(("cores", "processes", "threads"), [(8, 3, "2"), (1, 4, "1"), (4, 0, "4")])
def test_threads_share_the_nodes_cores(cores: int, processes: int, threads: str) -> None:
    env = made({"processes": [PROCESS] * processes}, {"cores": cores})
    assert env["OMP_NUM_THREADS"] == env["OPENBLAS_NUM_THREADS"] == threads


def test_nodes_on_one_machine_share_its_cores() -> None:
    env = made({"processes": [PROCESS] * 2, "sharing": 8}, {"cores": 32})
    assert env["OMP_NUM_THREADS"] == "4"


@pytest.mark.parametrize(("threads", "share"), [(3, "1"), (9, "1")])
def test_blas_threads_are_divided_by_the_threads_of_a_trainers_program(threads: int, share: str) -> None:
    spec = {"trainer_threads": threads}
    assert made(spec)["OMP_NUM_THREADS"] == made(spec)["OPENBLAS_NUM_THREADS"] == share
    assert made(spec, role="pserver")["OMP_NUM_THREADS"] == "4"


def test_a_given_number_of_threads_is_kept() -> None:
    env = made({"env": {"OMP_NUM_THREADS": "3"}}, {"inherited": {"OPENBLAS_NUM_THREADS": "5"}})
    assert (env["OMP_NUM_THREADS"], env["OPENBLAS_NUM_THREADS"]) == ("3", "5")


def test_a_library_path_in_conf_py_is_passed_on_and_without_one_the_inherited_one_is_kept() -> None:
    inherited = {"inherited": {"LD_LIBRARY_PATH": "/theirs"}}
    assert made({"ld_library_path": "/opt/lib"}, inherited)["LD_LIBRARY_PATH"] == "/opt/lib"
    assert made({}, inherited)["LD_LIBRARY_PATH"] == "/theirs"
    assert "LD_LIBRARY_PATH" not in made()


def test_the_number_of_threads_of_a_trainers_program_is_the_setting_and_one_in_older_specs() -> None:
    assert made()["PADDLE_INIT_TRAINER_COUNT"] == "1"
    assert made({"trainer_threads": 4})["PADDLE_INIT_TRAINER_COUNT"] == "4"
    assert "trainer_threads" not in make_spec(**SPEC).to_json()


@pytest.mark.parametrize(
    ("role", "rank", "endpoints", "port"),
    [
        ("pserver", 1, {"pserver0": "10.0.0.1:7170", "pserver1": "[fd00::1]:7171"}, "7171"),
        (
            "trainer",
            1,
            {"pserver0": "[fd00::1]:7170", "pserver1": "10.0.0.2:7171", "trainer1": "10.0.0.2:7172"},
            "7170",
        ),
        ("scheduler", 0, {"pserver0": "10.0.0.1:7170", "scheduler0": "10.0.0.1:7169"}, "7170"),
        ("pserver", 0, {}, "7164"),
    ],
)
def test_a_pserver_gets_its_own_port_and_a_trainer_that_of_the_pservers(
    role: str, rank: int, endpoints: dict[str, str], port: str
) -> None:
    process = make_process(role, rank)
    assert environment(make_spec(**SPEC), process, FACTS._replace(endpoints=endpoints))["PADDLE_INIT_PORT"] == port


def test_variables_of_a_scheduler_are_not_passed_on_but_those_of_its_job_are() -> None:
    environ = {"A": "1", "SSH_CONNECTION": "x", "SLURM_JOB_ID": "7", "SLURM_CONF": "/c", "PMI_SIZE": "1"}
    environ |= {"PMIX_MCA_x": "1", "OMPI_MCA_btl": "tcp", "SLURMD_NODENAME": "n1", "PMIXED": "mine"}
    assert inherited(environ) == {"A": "1", "SLURM_JOB_ID": "7", "PMIXED": "mine"}


@pytest.mark.parametrize("mark", ["SLURM_STEP_ID", "PMIX_RANK"])
def test_a_step_gets_nothing_of_the_environment_of_its_caller(mark: str) -> None:
    login = {"HOME": "/h", "PATH": "/bin", "LC_ALL": "C", "CUDA_VISIBLE_DEVICES": "1", "SLURM_JOB_NODELIST": "n[1-2]"}
    others = {"OMP_NUM_THREADS": "8", "PYTHONPATH": "/x", "SECRET": "s", mark: "0", "SLURM_JOBID": "3"}
    assert inherited({**login, **others}) == login
