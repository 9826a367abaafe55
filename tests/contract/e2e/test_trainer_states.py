"""States of trainers in checkpoints: written, completed, copied, resumed anywhere, and rolled back to."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from clusterctl.runtime import load_model
from support.site import Site, events_in

pytestmark = [pytest.mark.copies, pytest.mark.nodes(3), pytest.mark.slow]
QUICK = {"PSERVERS": 2, "TRAINERS": 2, "SAVE_EVERY": 7, "KEEP": 9, "RESTARTS": 3}
STEPS = 34
# The gradients are made of a state that only the trainer has, so the bits of the model depend on it. With the arguments
# HOW, STEP and RANK, that trainer of the first run dies at that step, once. "loses": its state is gone then; "writing":
# it dies when it has half written its state for a checkpoint; "fails": all of its attempts die; "copied": the same,
# when the state of trainer 1 in the newest checkpoint is on node 2.
TRAIN = """
import glob, os, pathlib, signal, sys, time
import numpy as np
from clusterctl.runtime import connect, SGD, zeros
from clusterctl.runtime.state.files import StateContent, entry_of

how, at, rank = sys.argv[1:4] if len(sys.argv) > 3 else ("", "99999", "0")
is_first = os.environ["CLUSTERCTL_ATTEMPT"] == "1" or how in ("fails", "copied")
once = how and os.environ["CLUSTERCTL_RUN"] == "0001" and is_first
lead = os.getcwd()
for node in range(1, 3):
    lead = lead.replace(f"/node{node}/", "/node0/")

copies = f"{lead.replace('/node0/', '/node2/')}/.clusterctl/runs/0001"

def die():
    os.kill(os.getpid(), signal.SIGKILL)

class Mean:
    def __init__(self):
        self.value = np.zeros(4)
    def take(self):
        return StateContent({"mean": {}}, [entry_of("mean/value", "F64", self.value.copy())])
    def load(self, saved):
        self.value[:] = saved.tensor("mean/value")[1]

def reader(pass_, rng):
    for _ in range(17):
        x = rng.standard_normal((8, 4), dtype=np.float32)
        yield x, x @ np.arange(4, dtype=np.float32)

with connect() as ps:
    w = ps.dense("w", shape=(4,), rule=SGD(0.05), init=zeros())
    mean = Mean()
    ps._states.add("mean", mean)
    once = once and ps.rank == int(rank)
    if once and how == "writing":
        replace = pathlib.Path.replace
        def replaced(path, target):
            if "/checkpoints/" in str(target) and ps.step >= int(at):
                die()
            return replace(path, target)
        pathlib.Path.replace = replaced
    for x, y in ps.steps(reader, passes=2):
        if once and how != "writing" and ps.step >= int(at):
            while len(glob.glob(f"{lead}/.clusterctl/runs/0001/checkpoints/*/manifest.json")) < 2:
                time.sleep(0.01)
            while how == "copied" and not glob.glob(f"{copies}/copies/step-000000014/trainer-00001.safetensors"):
                time.sleep(0.01)
            if how == "loses":
                for path in pathlib.Path(".clusterctl/runs/0001/state").iterdir():
                    path.unlink()
            die()
        mean.value += 0.5 * (x.T @ (x @ w.value - y) / len(x) - mean.value)
        ps.push({w: mean.value.astype(np.float32)}, samples=len(x), loss=1.0)
"""


def run_dir(site: Site, job: str, node: int, run: str = "0001") -> Path:
    return site.job_dir(job, node) / f".clusterctl/runs/{run}"


def manifest_of(site: Site, job: str, step: int, run: str = "0001") -> Any:
    path = run_dir(site, job, 0, run) / f"checkpoints/step-{step:09d}/manifest.json"
    return json.loads(path.read_text()) if path.is_file() else None


def events(site: Site, job: str, name: str, run: str = "0001") -> list[dict[str, Any]]:
    return [event for event in events_in(run_dir(site, job, 0, run) / "events.jsonl") if event["event"] == name]


def model_of(site: Site, job: str, home: str = "home") -> bytes:
    site.ok("collect", job, "-o", home)
    values: Any = load_model(site.directory / home / "model")["w"]
    return bytes(values.tobytes())


def crash(site: Site, job: str, *arguments: str) -> str:
    """Start a run that fails and return what it said."""
    result = site.run("start", "--job_workspace", job, "--", *arguments)
    assert result.code == 1, result.out + result.err
    site.assert_nothing_left(job)
    return result.err


@pytest.fixture(scope="module")
def expected(embedded_site: Site, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The model of an undisturbed run, whose checkpoints have the states."""
    site = embedded_site
    site.defaults = {}  # copies; `site` has not been asked for yet, and the test before may have set others
    site.directory = tmp_path_factory.mktemp("undisturbed")
    site.conf_path = site.directory / "conf.py"
    site.conf(HOSTS=site.hosts[:3], **QUICK)
    job = site.dispatch(TRAIN)
    site.ok("start", "--job_workspace", job)
    for step in (7, 28):
        states = manifest_of(site, job, step)["states"]
        assert [(one["trainer"], one["node"], one["file"]) for one in states] == [
            (rank, rank, f"trainer-{rank:05d}.safetensors") for rank in (0, 1)
        ]
        for rank in (0, 1):
            place = Path(f"step-{step:09d}") / f"trainer-{rank:05d}.safetensors"
            assert (run_dir(site, job, rank) / "checkpoints" / place).stat().st_size == states[rank]["bytes"]
    newest = Path("copies/step-000000028")  # of each node's files on the next one
    assert (run_dir(site, job, 1) / newest / "trainer-00000.safetensors").is_file()
    assert (run_dir(site, job, 2) / newest / "trainer-00001.safetensors").is_file()
    return model_of(site, job)


def test_a_checkpoint_that_is_half_written_when_its_trainer_dies_is_completed_by_the_successor(
    site: Site, expected: bytes
) -> None:
    site.conf(**QUICK)
    job = site.dispatch(TRAIN)
    site.ok("start", "--job_workspace", job, "--", "writing", "14", "1")
    assert len(events(site, job, "restarting")) == 1
    assert events(site, job, "rolled_back") == []
    assert len(manifest_of(site, job, 14)["states"]) == 2
    assert not list(run_dir(site, job, 1).glob("checkpoints/*/.*"))
    assert model_of(site, job) == expected


def test_a_trainer_whose_state_is_lost_brings_all_back_to_the_newest_checkpoint(site: Site, expected: bytes) -> None:
    site.conf(**QUICK)
    job = site.dispatch(TRAIN)
    ran = site.ok("start", "--job_workspace", job, "--", "loses", "18", "1")
    (lost,), (back,) = events(site, job, "state_lost"), events(site, job, "rolled_back")
    assert (lost["role"], lost["rank"]) == ("trainer", 1)
    assert "its state of step 18 is not on this node" in lost["message"]
    assert (back["tag"], back["whole"]) == ("step-000000014", True)
    assert len(events(site, job, "restarting")) == 1, "the roll back spends no RESTARTS"
    assert lost["message"] in ran.out + ran.err
    assert model_of(site, job) == expected


def test_states_follow_their_trainers_to_other_nodes(site: Site, expected: bytes) -> None:
    site.conf(**{**QUICK, "RESTARTS": 0, "COPIES": 1, "TRAINERS": site.hosts[:2]})
    job = site.dispatch(TRAIN)
    crash(site, job, "fails", "18", "0")
    site.conf(**{**QUICK, "COPIES": 1, "PSERVERS": site.hosts[:1], "TRAINERS": site.hosts[1:]})
    site.ok("start", "--resume", "--job_workspace", job)
    own = [run_dir(site, job, node, "0002") / "checkpoints/step-000000014" for node in range(3)]
    assert [sorted(path.name for path in place.glob("trainer-*")) for place in own] == [
        ["trainer-00000.safetensors"],
        ["trainer-00001.safetensors"],
        [],
    ], "they stay where they are, and are read from there"
    assert model_of(site, job) == expected


def test_a_copy_of_a_state_is_resumed_from_when_its_node_is_lost(site: Site, expected: bytes) -> None:
    site.conf(**{**QUICK, "RESTARTS": 0})
    job = site.dispatch(TRAIN)
    crash(site, job, "copied", "18", "0")
    for path in (run_dir(site, job, 1) / "checkpoints").glob("*/trainer-*"):
        path.unlink()
    resumed = site.ok("start", "--resume", "--job_workspace", job)
    assert "resuming from checkpoint step-000000014 of run 1" in resumed.out
    assert model_of(site, job) == expected


def test_with_another_number_of_trainers_their_states_are_dropped(site: Site) -> None:
    site.conf(**{**QUICK, "RESTARTS": 0, "COPIES": 1})
    job = site.dispatch(TRAIN)
    crash(site, job, "fails", "18", "0")
    (run_dir(site, job, 1) / "checkpoints/step-000000014/trainer-00001.safetensors").unlink()
    site.conf(**{**QUICK, "TRAINERS": 3})
    resumed = site.ok("start", "--resume", "--job_workspace", job)
    assert "the state of 2 trainers is dropped: the run has 3" in resumed.err
    assert "resuming from checkpoint step-000000014 of run 1" in resumed.out
    assert "states" not in manifest_of(site, job, 14, "0002")
    assert len(manifest_of(site, job, 21, "0002")["states"]) == 3
