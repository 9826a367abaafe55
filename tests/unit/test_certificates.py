"""The certificates of runs and dispatches are trusted whatever the clocks of the nodes say."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from clusterctl.certificates import Authority

DAY_S = 86_400


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")
@pytest.mark.parametrize("time_s", [0, 400 * DAY_S, 2**31 + DAY_S, 2**32 + DAY_S, 250_000_000_000])
def test_a_certificate_is_valid_at_any_time(tmp_path: Path, time_s: int) -> None:
    """From a clock that was never set, over the end of 32-bit times, to the year 9892."""
    authority = Authority()
    (tmp_path / "authority.pem").write_text(authority.trusted)
    (tmp_path / "node.pem").write_text(authority.issue("node0"))
    command = ["openssl", "verify", "-attime", str(time_s), "-CAfile", "authority.pem", "node.pem"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.stdout == "node.pem: OK\n", done.stderr
