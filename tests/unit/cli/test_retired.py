"""A conf.py and scripts from versions that kept connections between commands."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import clusterctl
from clusterctl.cli.arguments import GlobalOptions
from clusterctl.cli.console import Console
from clusterctl.cli.invocation import Invocation
from clusterctl.config import from_values, load
from support import forked

WARNING = (
    "KEEP_CONNECTIONS_S no longer has an effect; to keep connections open, use ssh as the carrier, with "
    "ControlPersist: see docs/carriers.md"
)


@pytest.fixture
def conf(tmp_path: Path) -> Path:
    path = tmp_path / "conf.py"
    path.write_text('HOSTS = ["h"]\nVIA = "local"\nKEEP_CONNECTIONS_S = 600\n')
    return path


@pytest.mark.parametrize("value", [600, 0, "of any kind"])
def test_an_old_setting_is_accepted_with_a_warning_that_says_where_it_is(tmp_path: Path, value: object) -> None:
    path = tmp_path / "conf.py"
    path.write_text(f'HOSTS = ["h"]\nKEEP_CONNECTIONS_S = {value!r}\n')
    assert load(path, {}).warnings == (f"{path}:2: {WARNING}",)
    assert load(path, {}, chosen={"KEEP_CONNECTIONS_S": "60"}).warnings == (WARNING,)
    assert from_values({"HOSTS": ["h"]}).warnings == ()


def test_a_command_warns_once(conf: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = GlobalOptions(conf=str(conf), json=True, quiet=True)
    invocation = Invocation(options, None, Console(options))
    for _ in range(2):
        invocation.settings()
    assert capsys.readouterr() == ("", f"warning: {conf}:3: {WARNING}\n")


def test_a_program_is_warned_once(conf: Path) -> None:
    said: list[str] = []
    with clusterctl.Cluster.from_conf(conf, progress=said.append):
        assert said == [f"warning: {conf}:3: {WARNING}"]


def disconnect(*options: str) -> subprocess.CompletedProcess[str]:
    return forked.run([sys.executable, "-m", "clusterctl", *options])


def test_disconnect_says_that_there_is_nothing_to_close() -> None:
    done = disconnect("disconnect")
    assert (done.returncode, done.stderr) == (0, "")
    sentence = "connections are no longer kept between commands; docs/carriers.md shows how ssh keeps them"
    assert done.stdout == f"nothing to close: {sentence}\n"
    assert json.loads(disconnect("disconnect", "--json").stdout)["helpers"] == []
    assert "disconnect" not in disconnect("--help").stdout
