"""A minute of a stream whose trainers and pservers are killed, which is stopped and resumed; see `stream`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from support.places import TESTS

pytestmark = pytest.mark.slow


@pytest.mark.timeout(400)
@pytest.mark.parametrize("mode", ["sync", "async"])
def test_every_record_of_a_stream_counts_once_and_neither_memory_nor_disk_grows(mode: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "contract.e2e.stream", "30", mode, str(tmp_path)]
    done = subprocess.run(command, cwd=TESTS, capture_output=True, text=True, timeout=360, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads(done.stdout)["records"] > 30 * 150
