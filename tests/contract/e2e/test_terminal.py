"""What a person sees on a real terminal: colours of outcomes, none of a program's, and no trace of progress."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from clusterctl.cli.progress.line import ERASE
from support.site import Site
from support.terminal import Shown, run_on_terminal

FAILS = """
import sys
print("\\x1b[32mnot ours\\x1b[0m", flush=True)
raise ValueError("\\x1b[32msucceeded\\x1b[0m")
"""
OURS = re.compile(r"\x1b\[(?:1;31|3[2-6]|0)m")
pytestmark = pytest.mark.nodes(2)


def shown(site: Site, *arguments: str, **environment: str) -> Shown:
    about = {"CLUSTERCTL_CONF": str(site.conf_path), "XDG_CACHE_HOME": str(site.nodes_directory / "cache")}
    argv = (sys.executable, "-m", "clusterctl", *arguments)
    return run_on_terminal(argv, {**about, "PYTHONPATH": str(Path.cwd()), **environment}, columns=160)


def left(text: str) -> str:
    """Return what is left on the terminal, in its colours."""
    return "\n".join(line.rpartition(ERASE)[2] for line in text.split("\n"))


@pytest.mark.slow
def test_outcomes_have_colours_and_text_of_programs_adds_none(site: Site) -> None:
    site.conf(ENGINE="none", PSERVERS=0)
    job = site.dispatch(FAILS)
    started = shown(site, "start", "--job_workspace", job, TERM="dumb")
    assert started.code == 1
    assert "\x1b" not in started.text
    for command in ("status", "jobs", "why", "stop"):
        words = (command,) if command == "jobs" else (command, job)
        coloured, plain = left(shown(site, *words).text), left(shown(site, *words, NO_COLOR="1").text)
        assert "\x1b[1;31mfailed\x1b[0m" in coloured
        assert OURS.sub("", coloured) == re.sub(r"\x1b", "", OURS.sub("", coloured))
        assert "\x1b" not in plain
        if command == "why":
            assert "\x1b[36mtrainer" in coloured
            assert "␛[32msucceeded␛[0m" in coloured
        if command in ("status", "jobs"):  # the others have times that change
            assert OURS.sub("", coloured) == plain
    assert "\x1b[32mstopped:\x1b[0m" in coloured


def test_a_dispatch_leaves_its_summary_and_no_line_of_progress(site: Site) -> None:
    workspace = site.workspace("print(1)")
    (workspace / "data").write_bytes(bytes(5_000_000))
    result = shown(site, "dispatch", str(workspace))
    assert result.code == 0
    lines = left(result.text).rstrip("\n").split("\n")
    assert re.fullmatch(r"\x1b\[32mJOB\d+-\d+ is on 2/2 nodes\x1b\[0m     next: .*", lines[-1])
    assert not [line for line in lines if "█" in line or "waiting" in line]
