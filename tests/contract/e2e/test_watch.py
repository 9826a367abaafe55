"""The live screen of `status --watch` and `start` on a real terminal."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from support.processes import wait_until
from support.site import Site
from support.terminal import Terminal

pytestmark = [pytest.mark.nodes(2), pytest.mark.slow]

# It ends when the file `end` is there; with the argument `fail`, trainer 1 fails instead.
TRAIN = """
import os, sys, time
import numpy as np
from clusterctl.runtime import connect, Adam, zeros

def reader(pass_, rng):
    while pass_ == 0 and not os.path.exists("end"):
        yield rng.standard_normal((8, 4), dtype=np.float32)

with connect() as ps:
    w = ps.dense("w", shape=(4,), rule=Adam(0.05), init=zeros())
    for x in ps.steps(reader, passes=2):
        time.sleep(0.05)
        ps.push({w: w.value - 1}, samples=len(x), loss=float(ps.step))
        ps.log(auc=0.5)
        if ps.step % 20 == 0:
            print("line", ps.step, flush=True)
if "fail" in sys.argv and ps.rank == 1:
    {}["learning_rate"]
"""


def on_terminal(site: Site, *arguments: str, columns: int = 80, lines: int = 24) -> Terminal:
    about = {"CLUSTERCTL_CONF": str(site.conf_path), "XDG_CACHE_HOME": str(site.nodes_directory / "cache")}
    argv = (sys.executable, "-m", "clusterctl", *arguments)
    return Terminal(argv, {**about, "PYTHONPATH": str(Path.cwd())}, columns=columns, lines=lines)


def end(site: Site, job: str) -> None:
    for node in range(2):
        (site.job_dir(job, node) / "end").touch()


def plain(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)


def test_the_screen_is_entered_and_left_without_an_effect_on_the_run(site: Site) -> None:
    job = site.dispatch(TRAIN)
    site.ok("start", "--job_workspace", job, "--detach")
    with on_terminal(site, "status", "--watch", job) as terminal:
        terminal.expect("q leaves; the run continues")
        terminal.expect("0/2 passes")
        terminal.expect("samples/s")
        terminal.expect("trainer1")
        terminal.press("s")
        terminal.expect("s sort (rank)")  # else a trainer that is slow for a moment may be the first
        terminal.press("e")
        terminal.expect("e back")
        terminal.press("l")
        terminal.expect("trainer0@node0")
        terminal.expect("line 20")
        terminal.press("\x1b[A")
        terminal.press("q")
        left = terminal.wait()
    assert left.code == 0
    assert f"{job} continues" in plain(left.text)
    with on_terminal(site, "status", "--watch", job) as terminal:
        terminal.expect("q leaves")
        terminal.press("\x03")
        assert terminal.wait().code == 0
    assert site.status(job)["state"] == "running"
    end(site, job)
    assert wait_until(lambda: site.status(job)["state"] == "succeeded")


def test_it_ends_with_the_run_and_shows_the_outcome(site: Site) -> None:
    job = site.dispatch(TRAIN)
    site.ok("start", "--job_workspace", job, "--detach", "--", "fail")
    with on_terminal(site, "status", "--watch", job) as terminal:
        terminal.expect("samples/s")
        end(site, job)
        shown = terminal.wait()
    assert shown.code == 1
    assert "KeyError: 'learning_rate'" in plain(shown.text)
    assert plain(shown.text).count("first cause") == 1


def test_an_attached_start_shows_a_traceback_of_another_rank_in_one_line_and_can_be_left(site: Site) -> None:
    job = site.dispatch(TRAIN)
    with on_terminal(site, "start", "--job_workspace", job, columns=120, lines=40) as terminal:
        terminal.expect("samples/s")
        terminal.press("d")
        shown = terminal.wait()
    assert shown.code == 0
    assert f"detached from {job}" in plain(shown.text)
    site.ok("stop", job)
    with on_terminal(site, "start", "--job_workspace", job, "--", "fail", columns=120, lines=40) as terminal:
        terminal.expect("samples/s")
        end(site, job)
        shown = terminal.wait()
    assert shown.code == 1
    assert re.search(r"trainer1@node1  KeyError: 'learning_rate' \(train\.py:\d+\)", plain(shown.text))
