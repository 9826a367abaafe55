"""kill -9 at any moment, then `start --resume`: the model is that of an undisturbed run, bit for bit."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from contract.e2e.models import assert_same, model_of
from support.site import Result, Site

pytestmark = [pytest.mark.copies, pytest.mark.slow]
QUICK = {"PSERVERS": 3, "TRAINERS": 3, "SAVE_EVERY": 7, "KEEP": 2}
STEPS = 85
# With the arguments KIND, STEP and RUN, trainer 0 of that run kills a random process of that kind at that step. Before
# that it waits for two complete checkpoints in the first run, and for one in the others.
TRAIN = """
import glob, os, random, signal, sys, time
import numpy as np
from clusterctl.runtime import connect, Adagrad, Adam, uniform, zeros

kind, at, run = sys.argv[1:4] if len(sys.argv) > 3 else ("", "0", "")
mine = os.environ["CLUSTERCTL_RUN"]
words = {"trainer": "train.py", "pserver": "clusterctl.runtime.pserver", "supervisor": "entry.py supervisor"}.get(kind)

def read(pid, name):
    try:
        with open(f"/proc/{pid}/{name}", "rb") as file:
            return file.read().decode(errors="replace").replace(chr(0), " ")
    except OSError:
        return ""

def kill():
    nodes = os.getcwd().partition("/node0/")[0]  # another cluster on this machine may have the same job ids
    pids = [pid for pid in os.listdir("/proc") if pid.isdigit() and words in read(pid, "cmdline")]
    os.kill(int(random.choice([p for p in pids if nodes in read(p, "environ") + read(p, "cmdline")])), signal.SIGKILL)

def reader(pass_, rng):
    for _ in range(17):
        x = rng.standard_normal((32, 4), dtype=np.float32)
        yield x, x @ np.arange(4, dtype=np.float32), rng.integers(-500, 500, 64)

with connect() as ps:
    w = ps.dense("w", shape=(4,), rule=Adam(0.05), init=zeros())
    wide = ps.dense("wide", shape=(3, 70_000), rule=Adagrad(0.1), init=uniform(0.1))
    emb = ps.embedding("e", dim=3, rule=Adagrad(0.1), init=uniform(0.1))
    for x, y, ids in ps.steps(reader, passes=5, on_pass=lambda pass_: ps.log(auc=1.0 / (1 + pass_))):
        if mine == run and ps.rank == 0 and ps.step >= int(at):
            while len(glob.glob(f".clusterctl/runs/{run}/checkpoints/*/manifest.json")) < (2 if run == "0001" else 1):
                time.sleep(0.01)
            kill()
            run = ""
        error = x @ w.value - y
        rows = emb.pull(ids)
        slope = {w: x.T @ error / len(x), emb: (ids, rows), wide: wide.value * np.float32(0.1)}
        ps.push(slope, samples=len(x), loss=float((error ** 2).mean()))
"""


def quick(site: Site, **settings: Any) -> None:
    site.conf(HOSTS=site.hosts[:3], **{**QUICK, **settings})


def checkpoints(site: Site, job: str, run: str = "0001") -> list[str]:
    """Return the names of the complete checkpoints, oldest first."""
    place = site.job_dir(job, 0) / f".clusterctl/runs/{run}/checkpoints"
    return sorted(path.parent.name for path in place.glob("*/manifest.json"))


def tag(step: int) -> str:
    return f"step-{step:09d}"


@pytest.fixture(scope="module")
def expected(embedded_site: Site, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The model of an undisturbed run."""
    site = embedded_site
    site.directory = tmp_path_factory.mktemp("undisturbed")
    site.conf_path = site.directory / "conf.py"
    quick(site, KEEP_BEST="auc:max")
    job = site.dispatch(TRAIN)
    site.ok("start", "--job_workspace", job)
    best = [tag(28)]  # the newest before the end of the second pass, whose auc is lower
    assert checkpoints(site, job) == [*best, tag(77), tag(84)]
    return model_of(site, job)


def arguments_of(plan: Any) -> list[str]:
    """Return the arguments of the training program in a plan."""
    (arguments,) = {tuple(one["argv"][2:]) for one in plan["processes"] if one["role"] == "trainer"}
    return list(arguments)


def crash(site: Site, *args: str) -> Result:
    """Start a run in which a process is killed and return its result."""
    result = site.run("start", *args)
    assert result.code == 1, result.out + result.err
    return result


def test_a_run_resumed_after_a_killed_trainer_makes_the_model_of_an_undisturbed_run(
    site: Site, expected: dict[str, Any]
) -> None:
    quick(site)
    job = site.dispatch(TRAIN)
    arguments = ["trainer", str(random.randint(20, STEPS - 1)), "0001"]
    crashed = crash(site, "--job_workspace", job, "--", *arguments)
    site.assert_nothing_left(job)
    last = checkpoints(site, job)[-1]
    words = " ".join(arguments)
    assert f": clusterctl start --resume --job_workspace {job}; with a corrected program: " in crashed.err
    resume = ("start", "--resume", "--job_workspace", job)
    plan = site.ok(*resume, "--plan", "--json").json()
    assert (plan["job"], plan["resume"]["tag"]) == (job, last)
    assert arguments_of(plan) == arguments
    replaced = site.ok(*resume, "--plan", "--json", "--", "--epochs", "60")
    assert arguments_of(replaced.json()) == ["--epochs", "60"]
    assert f"the program's arguments change from `{words}` to `--epochs 60`" in replaced.err
    assert arguments_of(site.ok(*resume, "--plan", "--json", "--").json()) == []
    resumed = site.ok(*resume)
    assert f"resuming from checkpoint {last} of run 1 (pass " in resumed.out
    assert f" with its arguments: {words}\n" in resumed.out
    spec = json.loads((site.job_dir(job, 0) / ".clusterctl/runs/0002/spec.json").read_text())
    assert spec["arguments"] == arguments
    assert site.status(job)["resumed"]["tag"] == last
    assert_same(model_of(site, job), expected)
    assert len(checkpoints(site, job, "0002")) == 2


def test_after_a_killed_pserver_the_last_undamaged_checkpoint_loads_into_fewer_pservers_and_more_lanes(
    site: Site, expected: dict[str, Any]
) -> None:
    quick(site, COPIES=1)
    job = site.dispatch(TRAIN)
    crash(site, "--job_workspace", job, "--", "pserver", str(random.randint(20, STEPS - 1)), "0001")
    site.assert_nothing_left(job)
    before, last = checkpoints(site, job)
    piece = site.job_dir(job, 1) / f".clusterctl/runs/0001/checkpoints/{last}/pserver-00001.safetensors"
    piece.write_bytes(piece.read_bytes()[:-1] + b"?")
    quick(site, PSERVERS=2, PORTS_NUM_FOR_SPARSE=2)
    resumed = site.ok("start", "--resume", "--job_workspace", job)
    assert f"skipped checkpoint {last} of run 1: pserver-00001.safetensors on node1 is damaged" in resumed.err
    assert f"resuming from checkpoint {before} of run 1" in resumed.out
    assert_same(model_of(site, job), expected)


def test_a_resumed_run_that_dies_before_its_first_checkpoint_resumes_from_the_same_one(
    site: Site, expected: dict[str, Any]
) -> None:
    quick(site, NODE_GRACE_S=5, ON_NODE_LOSS="fail")
    job = site.dispatch(TRAIN)
    crash(site, "--job_workspace", job, "--", "supervisor", str(random.randint(20, STEPS - 8)), "0001")
    site.assert_nothing_left(job)
    last = checkpoints(site, job)[-1]
    quick(site, SAVE_EVERY="100 passes")
    crash(site, "--resume", "--", "trainer", "0", "0002")
    site.assert_nothing_left(job)
    assert checkpoints(site, job, "0002") == [last]
    resumed = site.ok("start", "--resume")
    assert f"resuming from checkpoint {last} of run 2" in resumed.out
    assert_same(model_of(site, job), expected)


def test_a_resumed_run_has_the_settings_that_were_set_for_the_run_before(site: Site) -> None:
    quick(site)
    job = site.dispatch(TRAIN)
    given = ("--set", "PADDLE_PORTS_NUM=2", "--set", "KEEP=3", "--set", "ENV={'TOKEN': 'geheim'}")
    crash(site, "--job_workspace", job, *given, "--", "trainer", "30", "0001")
    site.assert_nothing_left(job)
    last = checkpoints(site, job)[-1]
    manifest = (site.job_dir(job, 0) / f".clusterctl/runs/0001/checkpoints/{last}/manifest.json").read_text()
    assert json.loads(manifest)["settings"] == {"PORTS_NUM": "2", "KEEP": "3", "ENV": "..."}
    plan = site.ok("start", "--resume", "--plan", "--json", "--set", "KEEP=1", "--", "x")
    assert {process["env"]["PADDLE_INIT_PORTS_NUM"] for process in plan.json()["processes"]} == {"2"}
    resumed = site.ok("start", "--resume", "--set", "KEEP=4")
    words = "with its arguments: trainer 30 0001 and its settings: --set PORTS_NUM=2\n"
    assert words in resumed.out
    assert "the checkpoint was made with --set ENV=..., which does not apply now" in resumed.err
    spec = json.loads((site.job_dir(job, 0) / ".clusterctl/runs/0002/spec.json").read_text())
    assert (spec["ports_num"], spec["keep"], spec["settings"]) == (2, 4, {"PORTS_NUM": "2", "KEEP": "4"})
    assert "geheim" not in resumed.out + resumed.err + manifest


def test_without_a_checkpoint_resume_is_refused_with_a_hint(site: Site) -> None:
    job = site.dispatch(TRAIN)
    refused = site.run("start", "--resume", "--json", "--job_workspace", job)  # the default is one that has run
    assert refused.code == 4
    error = refused.json()["error"]
    assert f"{job} has no checkpoint to resume from" in error["message"]
    assert "without --resume" in error["hint"]
    assert site.status(job)["state"] == "dispatched"
    assert site.run("start", "--resume", "--job_dispatch_package", str(site.directory / "workspace")).code == 2
    assert site.run("start", "--rejoin", "--resume").code == 2
