"""`clusterctl demo` trains for real, alongside another demo, and after one that was killed."""

from __future__ import annotations

import inspect
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from clusterctl.cli.commands import demo
from clusterctl.cli.declarations import commands
from clusterctl.runtime import load_model
from support.openssh import find_sshd
from support.processes import assert_none_left, processes_below, processes_with_environment, wait_until

MARK = "CLUSTERCTL_FAKE"


def begin(directory: Path, *args: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "clusterctl", "demo", *args],
        cwd=directory,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(demo: subprocess.Popen[str]) -> tuple[str, str]:
    with demo:
        out, err = demo.communicate(timeout=300)
    assert demo.returncode == 0, out + err
    return out, err


def assert_learned(directory: Path, out: str, err: str) -> None:
    """Assert that the model halves the baseline perplexity in two passes, and that all promised files are there."""
    document = json.loads(out)
    assert (document["schema"], document["nodes"], len(document["passes"])) == ("clusterctl/1", 4, 2)
    assert document["perplexity"] * 2 < document["unigram_perplexity"]
    model = load_model(directory / document["model"])
    ids, rows = model["word"]
    target = directory / Path(document["curve"]).parent
    words = (target / "workspace/data/words.txt").read_text().splitlines()
    assert rows.shape == (len(ids), 32)
    assert model["output.w"].shape == (256, len(words))
    assert np.isfinite(rows).all()
    assert (target / "loss.svg").read_text().startswith("<svg")
    assert "nearest neighbours" in err
    for rank in range(4):
        assert "compute" in (target / f"results/node-{rank}/log/train.log").read_text()


def test_a_demo_makes_four_passes_by_default() -> None:
    assert inspect.signature(commands.demo).parameters["passes"].default == 4


@pytest.mark.parametrize(
    ("called", "path", "uv", "named"),
    [
        ("bin/clusterctl", "bin", {}, "clusterctl"),
        ("bin/clusterctl", "other", {}, "{here}/bin/clusterctl"),
        ("bin/clusterctl", "bin", {"UV": "/usr/bin/uv"}, "{here}/bin/clusterctl"),  # as under uvx
        ("my tools/clusterctl", "bin", {}, "'{here}/my tools/clusterctl'"),
        ("clusterctl/__main__.py", "other", {}, "clusterctl"),
    ],
)
def test_the_next_steps_of_a_demo_begin_with_what_starts_the_program_anywhere(
    called: str, path: str, uv: dict[str, str], named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("bin/clusterctl", "my tools/clusterctl"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).touch(0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [called, "demo"])
    assert demo.program({"PATH": str(tmp_path / path), **uv}) == named.format(here=tmp_path)


@pytest.mark.slow
def test_a_killed_demo_leaves_no_process_and_the_next_two_train_concurrently_and_leave_nothing(
    tmp_path: Path,
) -> None:
    find_sshd()
    with begin(tmp_path, "-n", "2", "--dir", "first", "--passes", "50", "--backend", "ssh") as demo:
        assert demo.stdout is not None
        for line in demo.stdout:
            if "all processes are running" in line:
                break
        cluster = str(tmp_path / "first/cluster")
        assert processes_with_environment(MARK, cluster)
        demo.send_signal(signal.SIGKILL)
        demo.communicate()
    assert_none_left(MARK, cluster)
    assert wait_until(lambda: not processes_below(tmp_path / "first/cluster"))
    large = begin(tmp_path, "--json", "--passes", "2", "--backend", "embedded")
    small = begin(tmp_path, "-n", "2", "--passes", "1", "--backend", "ssh")
    assert_learned(tmp_path, *finish(large))
    assert "done in" in finish(small)[0]
    targets = list((tmp_path / "clusterctl-demo").iterdir())
    assert len(targets) == 2
    for target in targets:
        assert_none_left(MARK, str(target / "cluster"))
        assert not (target / "cluster/nodes").exists()


@pytest.mark.slow
def test_ctrl_c_ends_the_demo_and_all_its_processes(tmp_path: Path) -> None:
    with begin(tmp_path, "-n", "1", "--dir", "it", "--passes", "50") as demo:
        assert demo.stdout is not None
        for line in demo.stdout:
            if "all processes are running" in line:
                break
        os.kill(demo.pid, signal.SIGINT)
        demo.communicate(timeout=180)
    assert demo.returncode == 130
    assert_none_left(MARK, str(tmp_path / "it/cluster"))
