"""Ctrl-C is never lost."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import signal, sys, time, weakref
from clusterctl.cli import repeat_ignored_interrupts

class Thing:
    def __del__(self):
        if {by_del}:
            signal.raise_signal(signal.SIGINT)

repeat_ignored_interrupts()
thing = Thing()
ref = weakref.ref(thing, lambda _: {by_del} or signal.raise_signal(signal.SIGINT))
try:
    del thing
    print("survived", flush=True)
    time.sleep(60)
except KeyboardInterrupt:
    sys.exit(7)
"""


@pytest.mark.parametrize("by_del", [False, True], ids=["a weakref callback", "a finalizer"])
def test_an_interrupt_that_python_ignores_is_raised_again(by_del: bool) -> None:
    """As in the import system, whose locks have such callbacks."""
    program = PROGRAM.format(by_del=by_del)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=180, check=False)
    assert (done.returncode, done.stderr) == (7, "")


def test_other_ignored_exceptions_are_still_reported() -> None:
    program = PROGRAM.format(by_del=True).replace("signal.raise_signal(signal.SIGINT)", "raise ValueError('lost')", 1)
    program = program.replace("time.sleep(60)", "")
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=180, check=False)
    assert done.returncode == 0
    assert "ValueError: lost" in done.stderr
