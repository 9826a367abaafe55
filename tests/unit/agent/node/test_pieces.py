"""Copies go with their originals, and with no others; files of the program are never taken for merged models."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from clusterctl.agent.node.checkpoint_files import is_merged_by_us
from clusterctl.agent.node.pieces import remove_checkpoint_copies, remove_merged, remove_model_copies
from clusterctl.common.files import write_json
from clusterctl.common.manifest import MERGED_MARK, write_manifest
from clusterctl.common.paths import JobPaths, RunPaths
from clusterctl.common.run_spec import ResumePoint, RunSpec, Saving
from clusterctl.runtime import save_model

JOB = "JOB20261121-081530"


def make_run(job: JobPaths, name: str, tags: dict[str, int], resume: tuple[str, int] | None = None) -> RunPaths:
    """Make a run that has copies of saves with these steps."""
    run = job.run(name)
    run.dir.mkdir(parents=True)
    point = ResumePoint(run=resume[0], tag="step-000000001", step=resume[1], pass_=0, dir="x") if resume else None
    write_json(run.spec, RunSpec(job=JOB, run=name, node=1, members=(0, 1), saving=Saving(resume=point)).to_json())
    for tag, step in tags.items():
        directory = run.copies / tag
        directory.mkdir(parents=True)
        files = [{"file": "pserver-00000.safetensors", "bytes": 1, "sha256": "0" * 64, "pserver": 0}]
        checkpoint = {"checkpoint": True} if tag.startswith("step-") else {}
        write_manifest(directory, {"v": 1, "run": name, "tag": tag, "step": step, "files": files, **checkpoint})
    return run


def left(run: RunPaths) -> list[str]:
    return sorted(path.name for path in run.copies.iterdir())


def test_a_fresh_run_leaves_the_copies_of_the_run_before_alone(tmp_path: Path) -> None:
    """Also on a node that had no outputs to move beside that run."""
    job = JobPaths(tmp_path / JOB)
    first, second = make_run(job, "0001", {"pass-00000": 5}), make_run(job, "0002", {"pass-00000": 5, "pass-00001": 9})
    remove_model_copies(second, ["pass-00000"])
    assert (left(first), left(second)) == (["pass-00000"], ["pass-00001"])


def test_a_run_that_resumed_removes_what_it_has_taken_over_and_not_what_was_set_aside(tmp_path: Path) -> None:
    job = JobPaths(tmp_path / JOB)
    first = make_run(job, "0001", {"pass-00000": 5, "pass-00001": 10, "pass-00002": 15})
    (first.dir / "output").mkdir()  # what was set aside
    second = make_run(job, "0002", {"pass-00002": 15}, resume=("0001", 10))
    remove_model_copies(second, ["pass-00000", "pass-00002"])
    assert (left(first), left(second)) == (["pass-00001", "pass-00002"], [])


def test_copies_of_checkpoints_go_with_them(tmp_path: Path) -> None:
    job = JobPaths(tmp_path / JOB)
    tags = {"step-000000005": 5, "step-000000010": 10, "pass-00000": 5}
    first, second = make_run(job, "0001", tags), make_run(job, "0002", tags)
    remove_checkpoint_copies(second, ["step-000000010"], "step-000000010", alone=False)
    assert left(first) == sorted(tags)
    assert left(second) == ["pass-00000", "step-000000010"]
    remove_checkpoint_copies(second, ["step-000000010"], "step-000000010", alone=True)
    assert left(first) == ["pass-00000"]


def test_only_models_that_runs_have_merged_are_removed(tmp_path: Path) -> None:
    job = JobPaths(tmp_path / JOB)
    own = save_model(job.output / "pass-00000", {"w": np.zeros(3)})
    merged = save_model(job.output / "pass-00001", {"w": np.zeros(3)})
    data = merged.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = data[8 : 8 + length].replace(b'"__metadata__":{', f'"__metadata__":{{"{MERGED_MARK}":"1",'.encode())
    merged.write_bytes(len(header).to_bytes(8, "little") + header + data[8 + length :])
    assert (is_merged_by_us(own), is_merged_by_us(merged)) == (False, True)
    remove_merged(job, but="pass-00001")
    assert (own.exists(), merged.exists()) == (True, True)
    remove_merged(job)
    assert (own.exists(), merged.exists()) == (True, False)
