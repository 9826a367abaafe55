"""The template as a user gets it: a copy, with data, whose programs are imported and run in place."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from clusterctl.templates import copy_workspace
from support.trees import import_programs

PROGRAMS = ("model", "neighbours", "prepare_data", "train")
Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="session")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("template") / "workspace"
    copy_workspace(target)
    return target


@pytest.fixture(scope="session")
def programs(workspace: Path) -> SimpleNamespace:
    return import_programs(workspace, PROGRAMS)


@pytest.fixture
def run() -> Run:
    """A function that runs a program of a workspace without a cluster and returns the completed process."""

    def run_program(directory: Path, *argv: str, **environ: str) -> subprocess.CompletedProcess[str]:
        env = {name: value for name, value in os.environ.items() if not name.startswith("CLUSTERCTL_")}
        return subprocess.run(
            [sys.executable, *argv],
            cwd=directory,
            env={**env, "OPENBLAS_NUM_THREADS": "2", **environ},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )

    return run_program
