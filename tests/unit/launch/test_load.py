"""Choosing the saved model that a run starts with, and the nodes from which pservers read it."""

from __future__ import annotations

import hashlib
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from clusterctl.common.files import write_json
from clusterctl.common.manifest import piece_name, write_manifest
from clusterctl.common.paths import JobPaths
from clusterctl.errors import RefusedError, UsageError
from clusterctl.launch import SavedModel, choose_model, plan
from unit.agent.nodes import PipeCluster

JOB, NEW = "JOB20261121-081530", "JOB20261122-081530"


class Nodes(PipeCluster):
    """Nodes of which all have the job NEW, and some the job with the models."""

    def __init__(self, directory: Path, nodes: int = 3, **values: Any) -> None:
        super().__init__(directory, sys.executable, nodes, **values)
        for node in self.nodes:
            for name in (JOB, NEW):
                job = self.job(node.id, name)
                job.runs.mkdir(parents=True)
                write_json(job.record, {"job": name, "node": node.id, "nodes": nodes})

    def job(self, node: int, name: str = JOB) -> JobPaths:
        return JobPaths(self.home(node) / "clusterctl" / name)

    def output(self, node: int, run: str, *, moved: bool) -> Path:
        return self.job(node).run(run).dir / "output" if moved else self.job(node).output

    def save(self, tag: str, step: int, run: str = "0001", *, moved: bool = False, complete: bool = True) -> None:
        """Put the pieces of two pservers on nodes 0 and 1, and the manifest on node 0."""
        files = []
        for p in range(2):
            header = f'{{"__metadata__":{{"run":"{run}","step":"{step}"}}}}'.encode()
            data = len(header).to_bytes(8, "little") + header + f"{run} {tag} {p}".encode() * 1000
            place = self.output(p, run, moved=moved) / tag
            place.mkdir(parents=True)
            (place / piece_name(p)).write_bytes(data)
            digest = hashlib.sha256(data).hexdigest()
            files.append({"file": piece_name(p), "pserver": p, "bytes": len(data), "sha256": digest, "node": p})
        about = {"v": 1, "job": JOB, "run": run, "tag": tag, "step": step, "pass": 0, "mode": "sync", "seed": 0}
        if complete:
            place = self.output(0, run, moved=moved) / tag
            write_manifest(place, {**about, "pservers": 2, "tables": {}, "files": files})

    def choose(self, ref: str = JOB, run: int | None = None, tag: str | None = None) -> SavedModel:
        launch = plan(self.settings, self.inventory)
        return choose_model(self, ref, self.nodes, launch, run=run, tag=tag)

    def spec(self, model: SavedModel, node: int = 2) -> dict[str, Any]:
        return model.in_spec(NEW, "0001", plan(self.settings, self.inventory), self.nodes[node])


@pytest.fixture
def nodes(tmp_path: Path) -> Nodes:
    nodes = Nodes(tmp_path)
    nodes.save("pass-00000", 10, moved=True)
    nodes.save("pass-00001", 20, moved=True)
    nodes.save("pass-00000", 10, "0002")
    nodes.save("best", 15, "0002")
    return nodes


@pytest.mark.slow
def test_the_newest_model_of_the_newest_run_is_loaded_unless_another_one_is_named(nodes: Nodes) -> None:
    assert nodes.choose().to_json() == {"job": JOB, "run": "0002", "tag": "best", "step": 15, "pass": 0}
    assert nodes.choose(run=1).to_json()["tag"] == "pass-00001"
    assert nodes.choose(tag="pass-00000").to_json()["run"] == "0002"
    assert str(nodes.choose(JOB[:-3], 1, "pass-00000")) == f"model pass-00000 of {JOB} run 1 (step 10)"


def test_the_spec_names_the_model_and_the_nodes_that_have_its_pieces(nodes: Nodes) -> None:
    copies = nodes.job(2).run("0002").copies / "best"
    copies.mkdir(parents=True)
    shutil.copy(nodes.job(1).output / "best" / piece_name(1), copies)
    spec = nodes.spec(nodes.choose())
    assert spec["load"] == spec["sources"].name == f"best of {JOB} run 2"
    assert [(piece.file, piece.nodes) for piece in spec["sources"].pieces] == [
        (piece_name(0), (0,)),
        (piece_name(1), (1, 2)),
    ]
    assert nodes.choose().word(plan(nodes.settings, nodes.inventory), nodes.nodes[0]) == {}


def test_an_unknown_model_is_an_error_that_lists_those_there_are(nodes: Nodes) -> None:
    with pytest.raises(UsageError, match=f"{JOB} has no model pass-00007 in run 2") as raised:
        nodes.choose(run=2, tag="pass-00007")
    there = "best (run 2), pass-00000 (run 2), pass-00001 (run 1), pass-00000 (run 1)"
    assert raised.value.hint == f"complete models: {there}"
    with pytest.raises(UsageError, match=f"{NEW} has no model") as raised:
        nodes.choose(NEW)
    assert raised.value.hint == "complete models: none"


def test_models_are_loaded_by_our_pservers_only(tmp_path: Path) -> None:
    with pytest.raises(RefusedError, match="--load works with the built-in parameter server only"):
        Nodes(tmp_path, PSERVER_COMMAND="python ps.py").choose()
