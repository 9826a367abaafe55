"""From a workspace to a model, command by command."""

from __future__ import annotations

import hashlib
import json
import signal
import subprocess
from pathlib import Path

import numpy as np
import pytest

from clusterctl.runtime import load_model
from contract.e2e.programs import REGRESSION, SLEEP
from support.processes import wait_until
from support.site import Site

pytestmark = [pytest.mark.nodes(2), pytest.mark.copies]


@pytest.mark.nodes(4)
def test_a_job_trains_and_is_collected(any_site: Site) -> None:
    site = any_site
    job = site.dispatch(REGRESSION)
    name = f"~/clusterctl/{job}"
    started = site.ok("start", f"--job_workspace={name}", "--num_passes=2", "--unknown=1")
    assert "succeeded after" in started.out

    status = site.status(job)
    assert (status["state"], status["run"]) == ("succeeded", "0001")
    assert sorted((p["role"], p["rank"]) for p in status["processes"]) == [
        (role, rank) for role in ("pserver", "trainer") for rank in range(4)
    ]
    assert {p["state"] for p in status["processes"]} == {"succeeded"}
    trainers = [p for p in status["processes"] if p["role"] == "trainer"]
    assert {(p["pass"], p["step"]) for p in trainers} == {(1, 10)}
    assert all(p["loss"] > 0 and p["exit_code"] == 0 for p in trainers)

    logs = site.ok("logs", job, "--role", "trainer", "--grep", "done with")
    assert logs.out.count("done with ['--unknown=1']") == 4

    collected = site.ok("collect", job, "-o", "home", "--json").json()
    for file in collected["files"]:
        data = (site.directory / "home" / file["path"]).read_bytes()
        assert (len(data), hashlib.sha256(data).hexdigest()) == (file["bytes"], file["sha256"])
    model = load_model(Path(site.directory, collected["model"]))
    assert model["w"].shape == (4,)
    ids, rows = model["e"]
    assert len(ids) == len(rows) > 20
    assert (np.diff(ids) > 0).all()

    stopped = site.ok("stop", job, "--json").json()
    assert (stopped["survivors"], len(stopped["nodes"])) == (0, 4)
    site.assert_nothing_left(job)


@pytest.mark.slow
def test_a_job_can_be_named_by_id_prefix_or_directory(site: Site) -> None:
    site.conf(ROOT_DIR="~/one")  # contains only this job
    job = site.dispatch(SLEEP)
    spellings = (job, job[:8], f"~/one/{job}", f"{Path.home()}/one/{job}")
    assert {site.status(spelling)["job"] for spelling in spellings} == {job}
    missing = site.run("status", "JOB19700101-000000", "--json")
    assert missing.code == 2
    assert missing.json()["error"]["kind"] == "usage"


@pytest.mark.slow
def test_a_second_directory_with_the_same_conf_attaches_and_stops(site: Site, tmp_path: Path) -> None:
    site.conf(ENGINE="none")
    job = site.start(SLEEP)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "conf.py").write_text(site.conf_path.read_text())
    bare = {"CLUSTERCTL_CONF": ""}
    assert site.ok("status", "--json", cwd=elsewhere, env=bare).json()["job"] == job
    with site.popen("logs", "-f", "--role=trainer", cwd=elsewhere, env=bare) as following:
        assert following.stdout is not None
        assert "up" in following.stdout.readline()
        site.ok("stop", cwd=elsewhere, env=bare)
        following.communicate(timeout=180)
    assert following.returncode == 0
    site.assert_nothing_left(job)


@pytest.mark.slow
def test_a_new_run_keeps_the_logs_of_the_old_one(site: Site) -> None:
    site.conf(ENGINE="none")
    job = site.dispatch("print('run', __import__('os').environ['CLUSTERCTL_RUN'])")
    site.ok("start", "--job_workspace", job)
    site.ok("start", "--job_workspace", job)
    assert site.ok("logs", job, "--role=trainer", "--rank=0").out.split()[-1] == "0002"
    old = site.job_dir(job, 0) / ".clusterctl/runs/0001/log/train.log"
    assert old.read_text() == "run 0001\n"


def test_a_running_job_is_not_started_again(site: Site) -> None:
    site.conf(ENGINE="none")
    job = site.start(SLEEP)
    again = site.run("start", "--job_workspace", job, "--json")
    assert again.code == 4
    assert "already running" in again.json()["error"]["message"]
    assert site.status(job)["state"] == "running"
    site.ok("stop", job)


@pytest.mark.slow
def test_two_jobs_run_side_by_side_on_the_same_nodes(site: Site) -> None:
    first, second = site.start(SLEEP), site.start(SLEEP)
    assert first != second
    assert {site.status(job)["state"] for job in (first, second)} == {"running"}
    site.ok("stop", first)
    assert site.status(second)["state"] == "running"
    site.ok("stop", second)


@pytest.mark.nodes(4)
def test_the_plan_shows_what_would_run_and_does_nothing(site: Site) -> None:
    job = site.dispatch(SLEEP)
    plan = site.ok("start", "--job_workspace", job, "--plan", "--json", "--", "--passes", "2").json()
    trainer = next(p for p in plan["processes"] if (p["role"], p["rank"]) == ("trainer", 3))
    assert trainer["argv"] == ["python3", "train.py", "--passes", "2"]
    assert trainer["env"]["CLUSTERCTL_RANK"] == "3"
    assert "7164+0 (chosen at start)" in trainer["env"]["CLUSTERCTL_PSERVERS"]
    assert site.status(job)["state"] == "dispatched"


@pytest.mark.slow
def test_set_overrides_settings_of_conf_py_for_one_run(site: Site) -> None:
    site.conf(ENGINE="none", KEEP=5)
    job = site.dispatch("import os, sys; print(os.environ['MINE'], *sys.argv[1:])")
    given = ("--set", "ENV={'MINE': 'a b'}", "--set", "KEEP=2", "--set=TRAINERS_PER_NODE=2", "--mode=async")
    result = site.ok("start", "--job_workspace", job, *given)
    assert result.err.count("the setting MODE does not change. To change it: --set MODE=async") == 1
    spec = json.loads((site.job_dir(job, 1) / ".clusterctl/runs/0001/spec.json").read_text())
    assert (spec["keep"], spec["trainers"], spec["mode"], spec["arguments"]) == (2, 4, "sync", ["--mode=async"])
    assert (site.job_dir(job, 1) / "log/train.1.log").read_text() == "a b --mode=async\n"
    wrong = site.run("start", "--job_workspace", job, "--set", "MODE=fast", "--json")
    assert (wrong.code, wrong.json()["error"]["details"]["findings"][0]["key"]) == (2, "MODE")
    assert "--set MODE = 'fast': must be" in wrong.err
    assert site.run("start", "--job_workspace", job, "--set", "HOSTS=['h']").code == 2
    assert "--rejoin cannot be combined with --set" in site.run("start", "--rejoin", "--set", "KEEP=2").err
    assert len(site.ok("jobs", "--json").json()["jobs"][0]["runs"]) == 1


@pytest.mark.nodes(4)
def test_exec_folds_identical_output_and_names_the_failed_nodes(site: Site) -> None:
    result = site.run("exec", "--fold", "--", "sh", "-c", "echo same; test $CLUSTERCTL_FAKE_NODE != 2")
    assert result.code == 3
    assert "node[0,1,3]" in result.out.replace("0-1", "0,1")
    assert "node2 (exit code 1)" in result.out
    document = site.run("exec", "--json", "--only", "node[1-2]", "--", "echo $CLUSTERCTL_FAKE_NODE").json()
    assert [(n["node"], n["exit_code"], n["stdout"]) for n in document["nodes"]] == [(1, 0, "1\n"), (2, 0, "2\n")]


@pytest.mark.slow
@pytest.mark.nodes(3)
def test_every_process_gets_the_promised_environment(site: Site) -> None:
    site.conf(ENV={"MINE": "a b'c$d"}, LD_LIBRARY_PATH="/opt/lib", PADDLE_USE_GPU="False")
    show = "import json, os; print(json.dumps(dict(os.environ)))"
    job = site.dispatch(f"from clusterctl.runtime import connect\nwith connect(): {show}")
    site.ok("start", "--job_workspace", job)
    line = (site.job_dir(job, 2) / "log/train.log").read_text()
    env = json.loads(line)
    directory = str(site.job_dir(job, 2))
    expected = {
        "CLUSTERCTL_JOB": job,
        "CLUSTERCTL_JOB_DIR": directory,
        "CLUSTERCTL_RUN": "0001",
        "CLUSTERCTL_NODE_ID": "2",
        "CLUSTERCTL_ROLE": "trainer",
        "CLUSTERCTL_RANK": "2",
        "CLUSTERCTL_TRAINERS": "3",
        "CLUSTERCTL_ATTEMPT": "1",
        "CLUSTERCTL_OUTPUT_DIR": f"{directory}/output",
        "PYTHONUNBUFFERED": "1",
        "PADDLE_INIT_USE_GPU": "0",
        "PADDLE_INIT_TRAINER_COUNT": "1",
        "PADDLE_INIT_PORT": env["CLUSTERCTL_PSERVERS"].partition(",")[0].rpartition(":")[2],
        "PADDLE_INIT_PORTS_NUM": "1",
        "PADDLE_INIT_PORTS_NUM_FOR_SPARSE": "1",
        "PADDLE_INIT_NUM_GRADIENT_SERVERS": "3",
        "PADDLE_INIT_TRAINER_ID": "2",
        "PADDLE_INIT_PSERVERS": "127.0.0.1,127.0.0.1,127.0.0.1",
        "PADDLE_CLUSTER_TRAIN": "True",
        "TRAINING_ROLE": "TRAINER",
        "MINE": "a b'c$d",
        "LD_LIBRARY_PATH": "/opt/lib",
    }
    assert {name: env.get(name) for name in expected} == expected
    assert len(env["CLUSTERCTL_PSERVERS"].split(",")) == 3
    assert env["PYTHONPATH"].split(":")[0].startswith(f"{site.home(2)}/clusterctl/.clusterctl/lib/")
    assert int(env["OMP_NUM_THREADS"]) >= 1
    assert not {"SSH_CONNECTION", "RANK", "WORLD_SIZE", "PADDLE_TRAINER_ID"} & set(env)


@pytest.mark.nodes(4)
def test_data_shards_go_only_to_the_nodes_of_their_trainers(site: Site) -> None:
    site.conf(SHARDS=["data/*.txt-*"])
    workspace = site.workspace("")
    (workspace / "data").mkdir()
    for number in range(6):
        (workspace / "data" / f"train.txt-{number:05d}").write_text(str(number))
    (workspace / "data" / "words.txt").write_text("all")

    def dispatched() -> list[int]:
        """Dispatch, and check which shards programs find; return the number of files that were sent to each node."""
        job = site.ok("dispatch", str(workspace), "--json").json()
        listed = [sorted(path.name for path in site.job_dir(job["job"], node).rglob("*.txt*")) for node in range(4)]
        shards = [[int(name[-1]) for name in names if name != "words.txt"] for names in listed]
        assert shards == [[0, 4], [1, 5], [2], [3]]
        assert all("words.txt" in names for names in listed)
        return [node["files_sent"] for node in job["nodes"]]

    dispatched()
    site.conf(SHARDS=["data/*.txt-*"], SHARD_COPIES=3)
    assert dispatched() == [2, 3, 4, 3]
    assert dispatched() == [0, 0, 0, 0]


@pytest.mark.parametrize("when", ["dispatch", "start"])
def test_an_attached_start_is_stopped_by_ctrl_c(site: Site, when: str) -> None:
    package = site.workspace(SLEEP)
    with site.popen("start", "--job_dispatch_package", str(package)) as starting:
        assert starting.stdout is not None
        for line in starting.stdout:
            if ("trainer0" in line and "up" in line) or (when == "dispatch" and "workspace" in line):
                break
        starting.send_signal(signal.SIGINT)
        starting.communicate(timeout=180)
    assert starting.returncode == 130
    jobs = site.ok("jobs", "--json").json()["jobs"]
    if when == "start":
        assert jobs[0]["state"] == "stopped"
        site.assert_nothing_left(jobs[0]["job"])


@pytest.mark.slow
def test_the_job_keeps_running_when_the_attached_start_is_killed(site: Site) -> None:
    site.conf(ENGINE="none")
    package = site.workspace(SLEEP)
    with site.popen("start", "--job_dispatch_package", str(package)) as starting:
        assert starting.stdout is not None
        for line in starting.stdout:
            if "trainer0" in line:
                break
        starting.kill()
        starting.communicate()
    job = site.ok("jobs", "--json").json()["jobs"][0]["job"]
    assert wait_until(lambda: site.status(job)["state"] == "running")
    site.ok("stop", job)
    site.assert_nothing_left(job)


@pytest.mark.slow
def test_output_to_a_closed_pipe_ends_quietly(site: Site) -> None:
    site.conf(HOSTS=site.hosts[:1], PSERVERS=0)
    job = site.dispatch("print('line\\n' * 200000)")
    site.ok("start", "--job_workspace", job)
    with site.popen("logs", job) as reading:
        assert reading.stdout is not None
        reading.stdout.readline()
        reading.stdout.close()
        assert reading.stderr is not None
        err = reading.stderr.read()
        reading.wait(timeout=180)
    assert "Traceback" not in err
    assert isinstance(reading, subprocess.Popen)
