"""The unit tests of `common`, run by Python 3.9, the oldest version that a node may have."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from support.places import ROOT
from unit.agent.nodes import OLDEST, needs

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent
PACKAGES = ("pytest<9", "hypothesis")  # the last pytest for Python 3.9 is 8


@pytest.mark.timeout(600)
def test_the_tests_of_common_pass_under_python_3_9(tmp_path: Path) -> None:
    """Compiling is not enough: an argument such as zip(strict=True) fails only when the line is executed."""
    venv = tmp_path / "venv"
    subprocess.run([needs(OLDEST), "-m", "venv", venv], check=True)
    python = venv / "bin" / "python"
    install = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *PACKAGES]
    installed = subprocess.run(install, capture_output=True, text=True, check=False)
    if installed.returncode:
        give_up = pytest.fail if os.environ.get("CI") else pytest.skip
        give_up(f"pip cannot install {' and '.join(PACKAGES)}: {installed.stderr[-300:]}")
    files = [path for path in sorted(HERE.glob("test_*.py")) if path != Path(__file__)]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    done = subprocess.run(
        [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", *files],
        cwd=ROOT,
        env={**environment, "HYPOTHESIS_STORAGE_DIRECTORY": str(tmp_path / "hypothesis")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:]
