"""Choosing the checkpoint to resume from, and the nodes from which pservers read its pieces. No runtime is used."""

from __future__ import annotations

import hashlib
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from clusterctl.common.files import write_json
from clusterctl.common.manifest import NAME, piece_name, write_manifest
from clusterctl.common.paths import JobPaths
from clusterctl.errors import RefusedError, UsageError
from clusterctl.launch import LaunchPlan, choose, may_have_checkpoint, plan, recorded_settings
from clusterctl.launch.resume import Resume
from unit.agent.nodes import PipeCluster

JOB = "JOB20261121-081530"


def tag(step: int) -> str:
    return f"step-{step:09d}"


class Nodes(PipeCluster):
    """Nodes that have a job; checkpoints are put there in the form in which runs leave them."""

    def __init__(self, directory: Path, nodes: int = 3, **values: Any) -> None:
        super().__init__(directory, sys.executable, nodes, **{"ON_NODE_LOSS": "fail", **values})
        for node in self.nodes:
            job = self.job(node.id)
            job.runs.mkdir(parents=True)
            write_json(job.record, {"job": JOB, "node": node.id, "nodes": nodes})

    def job(self, node: int) -> JobPaths:
        return JobPaths(self.home(node) / "clusterctl" / JOB)

    def place(self, node: int, step: int, run: str = "0001") -> Path:
        return self.job(node).run(run).checkpoints / tag(step)

    def save(self, step: int, run: str = "0001", pservers: int = 3, complete: bool = True, **facts: Any) -> None:
        """Put pserver p's piece on node p, and the manifest on node 0."""
        files = []
        for p in range(pservers):
            data = f"{run} {step} {p}".encode() * 300_000
            self.place(p, step, run).mkdir(parents=True)
            (self.place(p, step, run) / piece_name(p)).write_bytes(data)
            digest = hashlib.sha256(data).hexdigest()
            files.append({"file": piece_name(p), "pserver": p, "bytes": len(data), "sha256": digest, "node": p})
        common = {"v": 1, "job": JOB, "run": run, "tag": tag(step), "step": step, "pass": 2, "mode": "sync", "seed": 0}
        whole = {"checkpoint": True, "trainers": 3, "lanes": [1, 1], "pservers": pservers, "tables": {}, "files": files}
        whole["arguments"] = []
        if complete:
            write_manifest(self.place(0, step, run), {**common, **whole, **facts})

    def plan(self) -> LaunchPlan:
        return plan(self.settings, self.inventory)

    def choose(self, job: str = JOB, of: str | None = None) -> Resume:
        return choose(self, job, self.nodes, self.plan(), of)

    def sources(self, resume: Resume) -> list[dict[str, list[int]] | None]:
        """Return, for each node of run 2, the nodes that have each piece that its pservers read; None without any."""
        found = [resume.in_spec(JOB, "0002", self.plan(), node).get("sources") for node in self.nodes]
        assert {(one.job, one.run, one.tag) for one in found if one} <= {(JOB, "0002", resume.tag)}
        return [one and {piece.file: list(piece.nodes) for piece in one.pieces} for one in found]

    def taken(self, resume: Resume) -> list[list[str]]:
        """Return the pieces that each node takes over."""
        return [resume.word(self.plan(), node)["resume"]["files"] for node in self.nodes]


@pytest.fixture
def nodes(tmp_path: Path) -> Nodes:
    return Nodes(tmp_path)


def test_the_newest_complete_checkpoint_of_the_newest_run_that_has_one_is_chosen(nodes: Nodes) -> None:
    nodes.save(900)
    nodes.save(500, "0002")
    nodes.save(600, "0002")
    nodes.save(700, "0002", complete=False)
    resume = nodes.choose()
    assert resume.to_json() == {"run": "0002", "tag": tag(600), "step": 600, "pass": 2}
    point = resume.in_spec(JOB, "0003", nodes.plan(), nodes.nodes[0])["resume"]
    assert point.dir == f".clusterctl/runs/0003/checkpoints/{tag(600)}"
    (warning,) = resume.warnings
    assert warning == f"skipped checkpoint {tag(700)} of run 2: it is incomplete (no manifest)"


def test_damaged_and_missing_pieces_are_named_and_the_previous_checkpoint_is_used(nodes: Nodes) -> None:
    for step in (100, 200, 300):
        nodes.save(step)
    path = nodes.place(1, 300) / piece_name(1)
    path.write_bytes(path.read_bytes()[:-1] + b"!")
    (nodes.place(2, 200) / piece_name(2)).unlink()
    resume = nodes.choose()
    assert resume.tag == tag(100)
    assert resume.warnings[0].endswith("pserver-00001.safetensors on node1 is damaged: its checksum differs")
    assert resume.warnings[1].endswith("pserver-00002.safetensors is missing (written by node2)")


def test_without_a_good_checkpoint_a_resume_is_refused_and_all_problems_are_reported(nodes: Nodes) -> None:
    with pytest.raises(RefusedError, match="has no checkpoint to resume from") as raised:
        nodes.choose()
    assert "without --resume" in str(raised.value.hint)
    nodes.save(50, seed="?")
    nodes.save(100)
    (nodes.place(0, 100) / NAME).write_text("{")
    with pytest.raises(RefusedError, match="its manifest does not describe a checkpoint"):
        nodes.choose()
    with pytest.raises(RefusedError, match=r"skipped checkpoint .*: its manifest cannot be read"):
        nodes.choose()


def test_incomplete_checkpoints_hide_no_complete_one_from_the_lead_that_would_have_its_manifest(nodes: Nodes) -> None:
    def may_have(*, with_lead: bool) -> bool:
        return may_have_checkpoint(nodes, JOB, nodes.nodes[1:], with_lead=with_lead)

    nodes.save(900, complete=False)
    assert (may_have(with_lead=True), may_have(with_lead=False)) == (False, False)
    nodes.save(910, complete=False)
    assert (may_have(with_lead=True), may_have(with_lead=False)) == (False, True)


def test_a_different_seed_is_refused_and_a_different_mode_or_number_of_trainers_is_reported(tmp_path: Path) -> None:
    nodes = Nodes(tmp_path, SEED=5, MODE="async", TRAINERS=2)
    nodes.save(100)
    with pytest.raises(RefusedError, match=r"made with SEED = 0, but conf\.py sets 5"):
        nodes.choose()
    nodes.save(200, seed=5)
    mode, trainers = nodes.choose().warnings
    assert "made in mode sync, now it is async" in mode
    assert "made with 3 trainers, now there are 2" in trainers


def test_a_checkpoint_of_an_older_version_has_no_arguments_to_keep(nodes: Nodes) -> None:
    nodes.save(100, arguments=None)
    resume = nodes.choose()
    assert any("does not record the program's arguments" in warning for warning in resume.warnings)
    assert resume.applied_to(nodes.plan()).program_args == ()
    nodes.save(200, arguments=["--epochs", "60"])
    resume = nodes.choose()
    assert resume.warnings == ()
    assert resume.applied_to(nodes.plan()).program_args == ("--epochs", "60")
    given = plan(nodes.settings, nodes.inventory, [])
    assert resume.applied_to(given).program_args == ()


def test_settings_of_the_run_are_kept_unless_given_again_or_a_matter_of_trust(nodes: Nodes) -> None:
    assert recorded_settings(nodes, JOB, ()) == {}
    nodes.save(100, settings={"KEEP": "9"})
    made = {
        "KEEP": "5",
        "PORT": "8000",
        "STRICT_HOST_KEYS": "False",
        "TRAINER_COMMAND": "rm -r x",
        "NEW": "1",
        "WIRE": 7,
    }
    nodes.save(200, settings=made)
    nodes.save(300, complete=False)
    assert recorded_settings(nodes, JOB, ()) == {"KEEP": "5", "PORT": "8000"}
    assert recorded_settings(nodes, JOB, ["KEEP", "PADDLE_PORT", "X"]) == {}
    resume = nodes.choose()
    assert resume.settings == {name: text for name, text in made.items() if isinstance(text, str)}
    missed = [line.partition(", which does not apply now")[0] for line in resume.warnings if "--set" in line]
    assert "the checkpoint was made with --set 'TRAINER_COMMAND=rm -r x'" in missed
    assert len(missed) == 5
    nodes.settings = replace(nodes.settings, chosen={"KEEP": "5", "PORT": "8001"})
    assert len([line for line in nodes.choose().warnings if "--set" in line]) == 3
    nodes.save(400, settings=["KEEP"])
    assert recorded_settings(nodes, JOB, ()) == {}


def test_checkpoints_of_other_parameter_servers_are_not_resumed(tmp_path: Path) -> None:
    with pytest.raises(RefusedError, match="the built-in parameter server"):
        Nodes(tmp_path, ENGINE="torch").choose()


def test_pservers_read_their_own_disk_if_pservers_and_lanes_are_unchanged(nodes: Nodes) -> None:
    nodes.save(100)
    resume = nodes.choose()
    assert nodes.sources(resume) == [None, None, None]
    assert nodes.taken(resume) == [[piece_name(n)] for n in range(3)]


@pytest.mark.parametrize("values", [{"PSERVERS": 2}, {"PORTS_NUM_FOR_SPARSE": 2}])
def test_pservers_read_from_all_nodes_when_the_placement_has_changed(tmp_path: Path, values: dict[str, Any]) -> None:
    """Every piece stays where it is: no node has to hold a whole model."""
    nodes = Nodes(tmp_path, **values)
    nodes.save(100)
    resume = nodes.choose()
    everything = {piece_name(p): [p] for p in range(3)}
    assert nodes.sources(resume) == [everything if node.pserver_ranks else {} for node in nodes.nodes]
    assert nodes.taken(resume) == [[piece_name(n)] for n in range(3)]


def test_a_pserver_that_moved_reads_only_its_own_piece_and_copies_count(nodes: Nodes) -> None:
    nodes.save(100)
    copies = nodes.job(1).run("0001").copies / tag(100)
    copies.mkdir(parents=True)
    (copies / piece_name(0)).write_bytes((nodes.place(0, 100) / piece_name(0)).read_bytes())
    (nodes.place(2, 100) / piece_name(2)).rename(copies / piece_name(2))
    resume = nodes.choose()
    assert nodes.sources(resume) == [{piece_name(0): [0, 1]}, {piece_name(1): [1]}, {piece_name(2): [1]}]
    assert nodes.taken(resume) == [[piece_name(0)], [piece_name(0), piece_name(1), piece_name(2)], []]


def test_the_lead_of_processes_that_may_move_knows_who_has_which_piece(tmp_path: Path) -> None:
    nodes = Nodes(tmp_path, ON_NODE_LOSS="move")
    nodes.save(100)
    everything = {piece_name(p): [p] for p in range(3)}
    assert nodes.sources(nodes.choose()) == [everything, {piece_name(1): [1]}, {piece_name(2): [2]}]


def test_a_checkpoint_is_known_by_the_manifest_among_copies_when_the_lead_has_lost_its_own(nodes: Nodes) -> None:
    nodes.save(100)
    copies = nodes.job(2).run("0001").copies / tag(100)
    copies.mkdir(parents=True)
    (nodes.place(0, 100) / NAME).rename(copies / NAME)
    assert nodes.choose().tag == tag(100)


def test_a_new_job_takes_the_checkpoint_of_another_one(nodes: Nodes) -> None:
    nodes.save(100)
    new = "JOB20261121-090000"
    resume = nodes.choose(new, of=JOB[:-2])
    assert resume.to_json() == {"job": JOB, "run": "0001", "tag": tag(100), "step": 100, "pass": 2}
    assert str(resume).startswith(f"checkpoint {tag(100)} of {JOB} run 1 ")
    node = nodes.nodes[1]
    point = resume.in_spec(new, "0001", nodes.plan(), node)["resume"]
    assert (point.job, point.run, point.dir) == (JOB, "0001", f".clusterctl/runs/0001/checkpoints/{tag(100)}")
    assert resume.word(nodes.plan(), node)["resume"]["job"] == JOB
    with pytest.raises(UsageError, match="there is no job JOB2025"):
        nodes.choose(new, of="JOB2025")


def test_a_spec_says_when_to_save_what_to_keep_and_where_to_resume_from(tmp_path: Path) -> None:
    nodes = Nodes(tmp_path, SAVE_EVERY=500, KEEP=4, KEEP_BEST="auc:max")
    nodes.save(100)
    node = nodes.nodes[1]
    more = nodes.choose().in_spec(JOB, "0002", nodes.plan(), node)
    addresses = dict.fromkeys(range(3), "10.0.0.1")
    made = nodes.plan().spec(node, job=JOB, run="0002", addresses=addresses, lead=None, **more)
    spec = made.to_json()
    assert (spec["checkpoints"], spec["save_every"], spec["keep"]) == (True, {"unit": "step", "n": 500}, 4)
    assert spec["keep_best"] == {"name": "auc", "direction": "max"}
    place = f".clusterctl/runs/0002/checkpoints/{tag(100)}"
    assert spec["resume"] == {"run": "0001", "tag": tag(100), "step": 100, "pass": 2, "dir": place}
