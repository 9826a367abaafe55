"""Checkpoints on one node: found, verified, carried forward and removed. Pieces arrive completely or not at all."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from clusterctl.agent.lead.actions import WriteManifest
from clusterctl.agent.node.checkpoint_files import (
    carry_on,
    drop_manifests,
    remove_models,
    remove_older,
    set_aside_later,
)
from clusterctl.agent.node.outputs import complete_models
from clusterctl.agent.operations import start
from clusterctl.agent.supervisor.checkpoints import CheckpointKeeper
from clusterctl.common.files import digest_of, write_json
from clusterctl.common.manifest import piece_name, read_manifest, write_manifest
from clusterctl.common.paths import JobPaths, RunPaths
from unit.agent.nodes import ask
from unit.agent.specs import make_context, make_spec

JOB = "JOB20261121-081530"


def tag(step: int) -> str:
    return f"step-{step:09d}"


@pytest.fixture
def job(tmp_path: Path) -> JobPaths:
    job = JobPaths(tmp_path / "root" / JOB)
    job.runs.mkdir(parents=True)
    write_json(job.record, {"job": JOB, "node": 0, "nodes": 1})
    return job


def manifest_of(step: int, pieces: dict[str, bytes]) -> dict[str, Any]:
    files = [
        {"file": name, "pserver": rank, "bytes": len(data), "sha256": hashlib.sha256(data).hexdigest(), "node": rank}
        for rank, (name, data) in enumerate(sorted(pieces.items()))
    ]
    common = {"tag": tag(step), "step": step, "pass": 1, "mode": "sync", "seed": 0, "pservers": len(files)}
    return {"v": 1, "job": JOB, "run": "0001", **common, "checkpoint": True, "tables": {}, "files": files}


def make(run: RunPaths, step: int, *ranks: int, complete: bool = True) -> dict[str, Any]:
    """Create a checkpoint of two pservers, with only some of its pieces on this node."""
    place = run.checkpoints / tag(step)
    place.mkdir(parents=True)
    pieces = {piece_name(rank): f"{step} of {rank}".encode() * 1000 for rank in range(2)}
    for rank in ranks:
        (place / piece_name(rank)).write_bytes(pieces[piece_name(rank)])
    manifest = manifest_of(step, pieces)
    if complete:
        write_manifest(place, manifest)
    return manifest


def names(run: RunPaths) -> list[str]:
    return sorted(path.name for path in run.checkpoints.iterdir())


def test_a_node_reports_its_checkpoints_and_what_is_wrong_with_them(job: JobPaths, tmp_path: Path) -> None:
    manifest = make(job.run("0001"), 10, 0, 1)
    make(job.run("0001"), 20, 0, complete=False)
    make(job.run("0002"), 30)
    (job.run("0002").checkpoints / tag(30) / "manifest.json").write_text("{")
    checkpoints = ask(tmp_path, {"op": "find_checkpoints", "ref": JOB})["checkpoints"]
    assert [(checkpoint["run"], checkpoint["tag"], checkpoint["pieces"]) for checkpoint in checkpoints] == [
        ("0001", tag(10), [piece_name(0), piece_name(1)]),
        ("0001", tag(20), [piece_name(0)]),
        ("0002", tag(30), []),
    ]
    assert (checkpoints[0]["manifest"], checkpoints[1]["manifest"], checkpoints[1]["reason"]) == (manifest, None, None)
    assert "cannot be read" in checkpoints[2]["reason"]


def test_every_byte_of_a_piece_is_verified(job: JobPaths, tmp_path: Path) -> None:
    manifest = make(job.run("0001"), 10, 0, 1)
    request = {"op": "verify_checkpoint", "ref": JOB, "run": "0001", "tag": tag(10), "files": manifest["files"]}
    assert ask(tmp_path, request)["pieces"] == {piece_name(0): None, piece_name(1): None}
    first, second = (job.run("0001").checkpoints / tag(10) / piece_name(rank) for rank in range(2))
    first.write_bytes(first.read_bytes()[:-1] + b"?")
    second.write_bytes(b"short")
    problems = ask(tmp_path, request)["pieces"]
    assert problems == {piece_name(0): "is damaged: its checksum differs", piece_name(1): "has 5 of 7000 bytes"}
    first.unlink()
    assert piece_name(0) not in ask(tmp_path, request)["pieces"]


def test_copies_of_other_nodes_pieces_are_found_and_verified(job: JobPaths, tmp_path: Path) -> None:
    manifest = make(job.run("0001"), 10, 0, complete=False)
    copies = job.run("0001").copies / tag(10)
    copies.mkdir(parents=True)
    (copies / piece_name(1)).write_bytes(b"10 of 1" * 1000)
    write_manifest(copies, manifest)
    (job.run("0001").copies / "pass-00000").mkdir()
    write_manifest(job.run("0001").copies / "pass-00000", {**manifest, "tag": "pass-00000", "checkpoint": False})
    found = ask(tmp_path, {"op": "find_checkpoints", "ref": JOB, "copies": True})["checkpoints"]
    assert [(one["tag"], one["manifest"], one["pieces"]) for one in found] == [
        (tag(10), None, [piece_name(0)]),
        (tag(10), manifest, [piece_name(1)]),
    ]
    models = ask(tmp_path, {"op": "find_models", "ref": JOB, "copies": True})["models"]
    assert [(one["tag"], one["run"]) for one in models] == [("pass-00000", "0001")]
    request = {"op": "verify_checkpoint", "ref": JOB, "run": "0001", "tag": tag(10), "files": manifest["files"]}
    assert ask(tmp_path, request)["pieces"] == {piece_name(0): None, piece_name(1): None}
    (copies / piece_name(0)).write_bytes(b"?" * 7000)  # a damaged copy beside a sound piece
    assert ask(tmp_path, request)["pieces"] == {piece_name(0): None, piece_name(1): None}


def test_models_are_found_in_output_and_where_those_of_older_runs_were_moved(job: JobPaths, tmp_path: Path) -> None:
    save_model(job, "pass-00000", 10, "0002")
    write_manifest(job.output / "pass-00000", {**manifest_of(10, {}), "tag": "pass-00000", "run": "0002"})
    save_model(job, "pass-00001", 20, "0001")
    job.run("0001").dir.mkdir()
    (job.run("0001").dir / "output").mkdir()
    (job.output / "pass-00001").rename(job.run("0001").dir / "output" / "pass-00001")
    models = ask(tmp_path, {"op": "find_models", "ref": JOB})["models"]
    assert [(one["tag"], one["run"], one["manifest"] is not None) for one in models] == [
        ("pass-00000", "0002", True),
        ("pass-00001", "0001", False),
    ]
    piece = job.run("0001").dir / "output" / "pass-00001" / piece_name(0)
    file = {"file": piece.name, "bytes": piece.stat().st_size, "sha256": hashlib.sha256(piece.read_bytes()).hexdigest()}
    request = {"op": "verify_checkpoint", "ref": JOB, "run": "0001", "tag": "pass-00001", "files": [file]}
    assert ask(tmp_path, request)["pieces"] == {piece_name(0): None}


def test_only_older_and_incomplete_checkpoints_are_removed(job: JobPaths) -> None:
    run, older = job.run("0002"), job.run("0001")
    make(older, 90, 0, 1)
    for step in (10, 20, 30, 1_000_000_000):
        make(run, step, 0, complete=step != 20)
    drop_manifests(run, [tag(30)], tag(30))
    assert read_manifest(run.checkpoints / tag(10)) is None
    assert read_manifest(run.checkpoints / tag(30)) is not None
    remove_older(run, [tag(30)], tag(30), alone=False)
    assert (names(run), names(older)) == ([tag(30), tag(1_000_000_000)], [tag(90)])
    remove_older(run, [tag(30)], tag(30), alone=True)
    assert (names(run), names(older)) == ([tag(30), tag(1_000_000_000)], [])


def test_a_resumed_run_owns_its_checkpoint(job: JobPaths) -> None:
    manifest = make(job.run("0001"), 10, 0, 1)
    run = job.run("0002")
    resume = {"run": "0001", "tag": tag(10), "files": [piece_name(1)], "manifest": manifest}
    carry_on(run, resume, job)
    remove_older(job.run("0001"), [], tag(11), alone=False)
    assert (run.checkpoints / tag(10) / piece_name(1)).read_bytes() == b"10 of 1" * 1000
    assert read_manifest(run.checkpoints / tag(10)) == manifest
    assert not (run.checkpoints / tag(10) / piece_name(0)).exists()


def test_of_several_copies_a_resumed_run_takes_the_sound_one(job: JobPaths) -> None:
    manifest = make(job.run("0001"), 10, 1)
    copies = job.run("0001").copies / tag(10)
    copies.mkdir(parents=True)
    own = job.run("0001").checkpoints / tag(10) / piece_name(1)
    (copies / piece_name(1)).write_bytes(own.read_bytes())
    own.write_bytes(b"?" * 7000)
    carry_on(job.run("0002"), {"run": "0001", "tag": tag(10), "files": [piece_name(1)], "manifest": manifest}, job)
    assert (job.run("0002").checkpoints / tag(10) / piece_name(1)).read_bytes() == b"10 of 1" * 1000


def test_a_checkpoint_that_other_nodes_read_stays_without_counting_as_one(job: JobPaths) -> None:
    run = job.run("0002")
    for step in (10, 20, 30):
        make(run, step, 0)
    remove_older(run, [tag(30)], tag(30), alone=False, served=tag(10))
    assert names(run) == [tag(10), tag(30)]
    assert read_manifest(run.checkpoints / tag(10)) is None
    assert (run.checkpoints / tag(10) / piece_name(0)).is_file()
    saves = CheckpointKeeper(make_context(run, job=JOB, **served_spec(job)))
    saves.carry_out({"do": "keep", "tags": [tag(30)], "newest": tag(30), "alone": False})
    assert names(run) == [tag(10), tag(30)]
    CheckpointKeeper(make_context(run, job=JOB)).carry_out(
        {"do": "keep", "tags": [tag(30)], "newest": tag(30), "alone": False}
    )
    assert names(run) == [tag(30)]


def served_spec(job: JobPaths) -> dict[str, Any]:
    point = {"run": "0001", "tag": tag(10), "step": 10, "pass": 1, "dir": "x"}
    return {"resume": point, "sources": {"job": job.dir.name, "run": "0002", "tag": tag(10), "pieces": []}}


def save_model(job: JobPaths, name: str, step: int, run: str = "0001") -> None:
    header = json.dumps({"__metadata__": {"step": str(step), "run": run}}).encode()
    (job.output / name).mkdir(parents=True)
    (job.output / name / piece_name(0)).write_bytes(len(header).to_bytes(8, "little") + header + b"data")


@pytest.mark.parametrize("moment", [{"step": 10}, {"step": 5, "steps": [5, 5, 0]}])
def test_models_after_the_checkpoint_are_set_aside_and_others_are_kept(job: JobPaths, moment: dict[str, Any]) -> None:
    save_model(job, "pass-00000", 10)
    save_model(job, "pass-00001", 20)
    (job.output / "mine").mkdir()
    (job.output / "mine" / piece_name(0)).write_bytes(b"\xff" * 20)
    aside = job.run("0001").dir / "output"
    aside.parent.mkdir()
    set_aside_later(job, moment, aside)
    assert sorted(path.name for path in job.output.iterdir()) == ["mine", "pass-00000"]
    assert [path.name for path in aside.iterdir()] == ["pass-00001"]


def test_models_are_removed_without_anything_that_the_program_put_beside_them(job: JobPaths, tmp_path: Path) -> None:
    for name in ("pass-00000", "pass-00001", "pass-00002", "best"):
        (job.output / name).mkdir(parents=True)
        (job.output / name / piece_name(0)).write_bytes(b"rows")
        write_manifest(job.output / name, {**manifest_of(7, {}), "tag": name})
    (job.output / "pass-00001" / "metrics.json").write_text("{}")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / piece_name(0)).write_bytes(b"not ours")
    (job.output / "pass-00003").symlink_to(tmp_path / "elsewhere")
    assert complete_models(job) == {"pass-00000": 7, "pass-00001": 7, "pass-00002": 7}
    remove_models(job, ["pass-00000", "pass-00001", "pass-00003", "pass-00009", "best", "../../x"])
    left = sorted(path.relative_to(job.output).as_posix() for path in job.output.rglob("*") if path.is_file())
    kept = [f"{name}/{file}" for name in ("best", "pass-00002") for file in ("manifest.json", piece_name(0))]
    assert left == sorted([*kept, "pass-00001/metrics.json"])
    assert (tmp_path / "elsewhere" / piece_name(0)).read_bytes() == b"not ours"


@pytest.mark.parametrize("resumed", [True, False, "from another job"])
def test_undoing_a_start_restores_outputs_and_checkpoints(job: JobPaths, resumed: bool | str) -> None:
    """A run that resumes another job begins with an empty output/, as a fresh one does."""
    manifest = make(job.run("0001"), 10, 0, 1)
    save_model(job, "pass-00000", 10)
    save_model(job, "pass-00001", 20)
    resume: dict[str, Any] = {"run": "0001", "tag": tag(10), "files": [piece_name(0)], "manifest": manifest}
    if resumed == "from another job":
        other = JobPaths(job.dir.parent / "JOB20261120-081530")
        other.runs.mkdir(parents=True)
        write_json(other.record, {"job": other.dir.name, "node": 0, "nodes": 1})
        make(other.run("0001"), 10, 0)
        resume["job"] = other.dir.name
    go: dict[str, Any] = {"keys": {}, **({"resume": resume} if resumed else {})}
    start._prepare(job.run("0002"), "0001", make_spec(), go)
    kept = ["pass-00000"] if resumed is True else []
    here = job.run("0002").checkpoints / tag(10) / piece_name(0)
    assert here.is_file() == bool(resumed)
    assert [path.name for path in job.output.iterdir()] == kept
    start._undo(job.run("0002"), "0001", resumed=resumed is True)
    assert sorted(path.name for path in job.output.iterdir()) == ["pass-00000", "pass-00001"]
    assert not job.run("0002").dir.exists()
    assert sorted(path.name for path in job.run("0001").dir.iterdir()) == ["checkpoints"]
    assert read_manifest(job.run("0001").checkpoints / tag(10)) == manifest


def receipts(step: int) -> list[dict[str, Any]]:
    pieces = {piece_name(rank): b"x" for rank in range(2)}
    manifest = manifest_of(step, pieces)
    common = {key: manifest[key] for key in ("tag", "step", "pass", "mode", "seed", "pservers", "checkpoint")}
    more = {"trainers": 2, "lanes": [1, 1], "tables": {}, "steps": [5, 6]}
    return [{**common, **more, **file, "rank": rank} for rank, file in enumerate(manifest["files"])]


@pytest.mark.parametrize("problem", [None, "in the way", "disk full"])
def test_a_checkpoint_does_not_count_until_its_manifest_is_written(
    job: JobPaths, problem: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*args: Any) -> Any:
        raise OSError(28, "No space left on device")

    run = job.run("0001")
    make(run, 10, 0, 1)
    if problem == "in the way":
        (run.checkpoints / tag(20)).write_text("")
    elif problem == "disk full":
        monkeypatch.setattr("clusterctl.common.files.os.fsync", full)
    failed: list[str] = []
    facts: list[dict[str, Any]] = []
    sent: list[dict[str, Any]] = []

    def fail(message: str, child: object, about: dict[str, Any]) -> None:
        failed.append(message)
        facts.append(about)

    saves = CheckpointKeeper(make_context(run, send=sent.append, fail=fail, job=JOB))
    saves.change_manifests(WriteManifest(tag(20), receipts(20), checkpoint=True))
    if problem is None:
        path = run.checkpoints / tag(20) / "manifest.json"
        manifest = read_manifest(path.parent)
        assert manifest is not None
        assert [file["node"] for file in manifest["files"]] == [0, 1]
        about = {"tag": tag(20), "checkpoint": True, "bytes": path.stat().st_size, "sha256": digest_of(path)}
        kept = {"do": "kept", "tag": tag(20), "step": 20, "steps": [5, 6]}
        assert (sent, failed) == ([{"do": "written", **about}, kept], [])
    else:
        assert sent == []
        assert f"cannot write the manifest of {tag(20)}" in failed[0]
        assert ("free space" in failed[0]) == (problem == "disk full")
        assert facts[0]["errno"] == {"disk full": "ENOSPC", "in the way": "EEXIST"}[problem]
        assert ("path" in facts[0]) == (problem == "in the way")
    assert read_manifest(run.checkpoints / tag(10)) is not None


def test_the_lead_receives_only_the_metric_that_keep_best_uses(job: JobPaths) -> None:
    sent: list[dict[str, Any]] = []
    best = {"name": "auc", "direction": "max"}
    saves = CheckpointKeeper(make_context(job.run("0001"), send=sent.append, keep_best=best))
    child: Any = type("Child", (), {"role": "trainer", "rank": 3})
    for values in ({"auc": 0.5, "loss": 1.0}, {"loss": 1.0}):
        saves.log(child, {"event": "log", "step": 7, "values": values, "weight": 2})
    logged = {"do": "logged", "rank": 3, "value": 0.5, "step": 7, "weight": 2.0}
    assert sent == [logged]
    saves.log(child, {"event": "log", "step": 100, "pushes": 20, "values": {"auc": 0.5}, "weight": 2})
    assert sent[1:] == [{**logged, "step": 20}], "in geo mode, checkpoints count exchanges"
