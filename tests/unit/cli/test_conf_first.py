"""conf.py is run once, and is checked before the command is loaded."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from clusterctl.cli.app import run

LOADED = "import sys\nfrom clusterctl.cli.app import run\ncode = run(sys.argv[1:])\nprint(code, *sys.modules)"


def test_conf_py_runs_once_however_often_a_command_needs_its_settings(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    conf = tmp_path / "conf.py"
    lines = ['HOSTS = ["h"]', 'VIA = "local"', f"ROOT_DIR = {str(tmp_path / 'root')!r}"]
    conf.write_text("\n".join(["import sys", "print('it runs', file=sys.stderr)", *lines]))
    assert run(["jobs", "--conf", str(conf)]) == 0
    assert capsys.readouterr().err.count("it runs") == 1


@pytest.mark.parametrize(
    ("text", "argv"),
    [
        ("HOSTS = [", ["status"]),
        ("NO_SETTING = 1", ["status"]),
        ("NO_SETTING = 1", ["start", "workspace"]),
        ("HOSTS = [", ["start", "workspace", "--set", "MODE=async"]),
    ],
)
def test_a_wrong_conf_py_is_refused_before_the_command_is_loaded(tmp_path: Path, text: str, argv: list[str]) -> None:
    conf = tmp_path / "conf.py"
    conf.write_text(text)
    program = [sys.executable, "-c", LOADED, *argv, "--conf", str(conf)]
    done = subprocess.run(program, capture_output=True, text=True, timeout=180, check=True)
    code, *loaded = done.stdout.split()
    assert code == "2"
    assert f"{conf}:1: " in done.stderr
    assert not [name for name in loaded if name.startswith(("clusterctl.cli.commands", "clusterctl.cluster"))]


def test_a_setting_that_an_option_replaces_is_checked_with_the_option(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    conf = tmp_path / "conf.py"
    conf.write_text('HOSTS = ["h"]\nPORT = 65535\nPORTS_NUM = 5\n')
    assert run(["start", "JOB", "--conf", str(conf), "--set", "PORT=1000x"]) == 2
    assert "--set PORT = '1000x'" in capsys.readouterr().err
