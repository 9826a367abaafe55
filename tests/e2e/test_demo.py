"""`clusterctl demo`: it trains for real, twice, beside another, and after one that was killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

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
        out, err = demo.communicate(timeout=150)
    assert demo.returncode == 0, out + err
    return out, err


def test_the_demo_trains_a_model_that_beats_the_baseline_twofold_and_leaves_nothing(tmp_path: Path) -> None:
    out, err = finish(begin(tmp_path, "--json", "--dir", "here"))
    document = json.loads(out)
    assert (document["schema"], document["nodes"], len(document["passes"])) == ("clusterctl/1", 4, 4)
    assert document["perplexity"] * 2 < document["unigram_perplexity"]
    model = load_model(tmp_path / document["model"])
    ids, rows = model["word"]
    words = (tmp_path / "here/workspace/data/words.txt").read_text().splitlines()
    assert rows.shape == (len(ids), 32)
    assert model["output.w"].shape == (256, len(words))
    assert np.isfinite(rows).all()
    assert (tmp_path / document["curve"]).read_text().startswith("<svg")
    assert "nearest neighbours" in err
    for rank in range(4):
        assert "compute" in (tmp_path / f"here/results/node-{rank}/log/train.log").read_text()
    assert_none_left(MARK, str(tmp_path / "here/cluster"))
    assert not (tmp_path / "here/cluster/nodes").exists()


@pytest.mark.parametrize("backend", ["embedded", pytest.param("ssh", marks=pytest.mark.slow)])
def test_a_killed_demo_leaves_no_process_and_the_next_two_work_side_by_side(tmp_path: Path, backend: str) -> None:
    if backend == "ssh":
        find_sshd()
    with begin(tmp_path, "-n", "2", "--dir", "first", "--passes", "50", "--backend", backend) as demo:
        assert demo.stdout is not None
        for line in demo.stdout:
            if "all processes are running" in line:
                break
        cluster = str(tmp_path / "first/cluster")
        assert processes_with_environment(MARK, cluster)
        demo.send_signal(signal.SIGKILL)
        demo.communicate()
    assert_none_left(MARK, cluster, deadline_s=20)
    assert wait_until(lambda: not processes_below(tmp_path / "first/cluster"))
    demos = [begin(tmp_path, "-n", "2", "--passes", "1", "--backend", backend) for _ in range(2)]
    for demo in demos:
        out, _ = finish(demo)
        assert "done in" in out
    assert len(list((tmp_path / "clusterctl-demo").iterdir())) == 2


def test_ctrl_c_ends_the_demo_and_everything_of_it(tmp_path: Path) -> None:
    with begin(tmp_path, "-n", "2", "--dir", "it", "--passes", "50") as demo:
        assert demo.stdout is not None
        for line in demo.stdout:
            if "all processes are running" in line:
                break
        os.kill(demo.pid, signal.SIGINT)
        demo.communicate(timeout=40)
    assert demo.returncode == 130
    assert_none_left(MARK, str(tmp_path / "it/cluster"))
