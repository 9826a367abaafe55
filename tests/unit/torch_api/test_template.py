"""The workspace of `init --template torch` learns, alone and on two nodes, and its saved model writes text."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from clusterctl.runtime import load_model
from clusterctl.templates import copy_workspace
from support.processes import wait_until
from support.site import make_site

pytestmark = pytest.mark.engines

SMALL = ("--context=32", "--width=32", "--depth=1", "--batch_size=16", "--learning_rate=0.01", "--dropout=0")
LINE = re.compile(r"pass (\d+): held-out loss ([\d.]+), of byte frequencies ([\d.]+)")


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The template with the beginning of its data."""
    target = tmp_path_factory.mktemp("torch") / "workspace"
    copy_workspace(target, "torch")
    run(target, "prepare_data.py")
    for name, size in (("train.txt", 60_000), ("test.txt", 6_000)):
        text = target / "data" / name
        text.write_bytes(text.read_bytes()[:size])
    return target


def run(workspace: Path, program: str, *argv: str, cwd: Path | None = None) -> str:
    command = [sys.executable, "-W", "error", str(workspace / program), *argv]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, cwd=cwd or workspace, env=env, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def losses(output: str) -> list[tuple[float, float]]:
    """Return the held-out loss of each pass and that of byte frequencies."""
    found = LINE.findall(output)
    assert [int(pass_) for pass_, _, _ in found] == [*range(len(found))]
    return [(float(loss), float(baseline)) for _, loss, baseline in found]


def test_it_learns_alone_the_same_each_time_and_its_model_writes_text(workspace: Path, tmp_path: Path) -> None:
    output = run(workspace, "train.py", *SMALL, "--passes=2", "--use_gpu=0", cwd=tmp_path)
    assert "ignored: --use_gpu=0" in output
    (first, baseline), (second, _) = losses(output)
    assert second < first < 0.95 * baseline
    (tmp_path / "again").mkdir()
    assert losses(run(workspace, "train.py", *SMALL, "--passes=1", cwd=tmp_path / "again")) == [(first, baseline)]
    saved = str(tmp_path / "output/pass-00001")
    text = run(workspace, "sample.py", saved, "The class", "--count=50", cwd=tmp_path)
    assert text.startswith("The class")
    assert len(text) > 50


def test_without_data_it_says_how_to_make_it(workspace: Path, tmp_path: Path) -> None:
    command = [sys.executable, str(workspace / "train.py"), "--data", str(tmp_path)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 1
    assert "run python prepare_data.py" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("more", [(), ("--outer=50",)], ids=["each step", "outer"])
def test_it_learns_on_two_nodes(workspace: Path, tmp_path: Path, more: tuple[str, ...]) -> None:
    with make_site("embedded", tmp_path, 2) as site:
        site.conf(PYTHON=sys.executable)  # which has torch
        package = ("--job_dispatch_package", str(workspace))
        events = site.ok("start", *package, "--json", "--", *SMALL, "--passes=2", *more, timeout_s=240).out
        job: str = json.loads(events.splitlines()[-1])["job"]
        for node in range(2):
            (_, baseline), (loss, _) = losses((site.job_dir(job, node) / "log/train.log").read_text())
            assert loss < 0.95 * baseline
        model = load_model(site.job_dir(job, 0) / "output/pass-00001/model.safetensors")
        assert model["bytes.weight"].shape == (256, 32)
        assert wait_until(lambda: not site.leftovers())
