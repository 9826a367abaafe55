"""Memory of received messages is used again, not returned to the system and asked for anew."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

FAULTS = """
import resource
from clusterctl.runtime.wire import sockets
import numpy as np

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    messages = [np.ones(2**18, np.float32) for _ in range(40)]
    del messages
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

sockets.open_context().term()
print(faults(), faults())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other systems have another malloc")
def test_messages_of_1_mb_take_their_page_faults_once() -> None:
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_"))}
    run = subprocess.run([sys.executable, "-c", FAULTS], env=environ, capture_output=True, text=True, check=True)
    first, second = map(int, run.stdout.split())
    assert second < first / 10 + 1
