"""The child of rank 0 that starts the run: its exit code is as a shell reports it."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

# A program of its own: pytest has threads, which a fork leaves behind in any state.
PROGRAM = """
import os, sys, time
from clusterctl.common.procfs import wait_until
from clusterctl.ranks.rank import Starter

def work():
    {work}

starter = Starter(work)
{then}
assert wait_until(lambda: starter.code() is not None, 60.0)
os._exit(starter.code())
"""


@pytest.mark.parametrize(
    ("work", "then", "code"),
    [
        ("return 3", "", 3),
        ("raise KeyError", "", 1),
        (f"os.kill(os.getpid(), {int(signal.SIGKILL)})", "", 137),
        ("time.sleep(600)", "starter.end()", 143),
    ],
)
def test_the_exit_code_of_the_starter_is_that_of_its_work_or_of_its_signal(work: str, then: str, code: int) -> None:
    program = PROGRAM.format(work=work, then=then)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False)
    assert done.returncode == code, done.stderr
