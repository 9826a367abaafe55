"""A guardian removes what the processes of its run were writing, and nothing else."""

from __future__ import annotations

from pathlib import Path

from clusterctl.agent.supervisor import guardian
from clusterctl.common.paths import JobPaths


def put(*paths: Path) -> None:
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")


def test_half_written_pieces_are_removed_with_the_directories_that_had_only_them(tmp_path: Path) -> None:
    run = JobPaths(tmp_path / "JOB").run("0001")
    elsewhere = tmp_path / "elsewhere"
    half = ".pserver-00000.safetensors-x1y2"
    put(run.checkpoints / "step-000000007/pserver-00000.safetensors", run.checkpoints / "step-000000007" / half)
    put(run.checkpoints / "step-000000014" / half, run.job.output / "pass-00001" / half)
    put(run.job.output / "pass-00001/notes.txt", run.job.output / half, elsewhere / half)
    (run.job.output / "mine").symlink_to(elsewhere)
    guardian.end_run(str(run.job.dir), "0001", "0.1")
    assert sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if not path.is_dir()) == [
        "JOB/.clusterctl/runs/0001/checkpoints/step-000000007/pserver-00000.safetensors",
        f"JOB/output/{half}",
        "JOB/output/pass-00001/notes.txt",
        f"elsewhere/{half}",
    ]
    assert not (run.checkpoints / "step-000000014").exists()
