"""The table of `clusterctl diff`: it fits the terminal and shows hostile text harmlessly."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from clusterctl.api.diff import run_ref
from clusterctl.cli.arguments import GlobalOptions
from clusterctl.cli.commands import diff
from clusterctl.cli.console import Console
from clusterctl.common.curves import Curve
from clusterctl.observe.record.compare import RunDiff, compare
from clusterctl.observe.record.contents import Contents, File
from clusterctl.observe.record.model import RunRecord
from support.records import EVIL, START, failed, points, succeeded

LONG = "x" * 300


def shown(compared: RunDiff, capsys: pytest.CaptureFixture[str]) -> list[str]:
    diff._show(Console(GlobalOptions()), compared)
    return capsys.readouterr().out.splitlines()


def compared(a: RunRecord, b: RunRecord, *, files: int = 2) -> RunDiff:
    trees = {"a": {EVIL: File(9, "1")}, "b": {f"{i}{EVIL}": File(2_000_000, EVIL) for i in range(files)}}
    of_a, of_b = (Contents({0: name}, {0: {EVIL: f"{name}{EVIL}"}}, {}) for name in "ab")
    return compare((a, b), (of_a, of_b), trees)


@pytest.mark.parametrize("columns", ["80", "40", "10"])
def test_hostile_names_stay_in_the_table(
    columns: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    hostile = replace(
        failed(),
        settings={EVIL: "1\n2", LONG: LONG, "SEED": f"7{EVIL}"},
        arguments=(f"--{EVIL}", EVIL, f"--{LONG}"),
        env=(EVIL, LONG),
        workspace=LONG,
        ended_t=START + 1e10,
        curves=tuple(
            Curve("trainer", 0, "step", name, tuple(points([1e307] * 9)), False) for name in ("loss", "samples_per_s")
        ),
    )
    lines = shown(compared(succeeded(), hostile), capsys)
    assert max(map(len, lines)) <= max(int(columns), diff.NARROWEST)
    assert all(line.isprintable() for line in lines)
    titles = [line for line in lines if line and not line.startswith((" ", "A", "B"))]
    assert titles == ["run", "settings", "arguments", "ENV", "packages", "files", "metrics"]


def test_a_long_section_is_cut(capsys: pytest.CaptureFixture[str]) -> None:
    lines = shown(compared(succeeded(), succeeded(), files=50), capsys)
    assert len([line for line in lines if line.endswith("added")]) == diff.MOST_ROWS
    assert {"  and 31 more", "--json shows every difference"} <= set(lines)
    assert lines[-1] == "the same: run, settings, arguments, ENV, metrics"


def test_changes_have_signs_and_what_is_missing_a_dash(capsys: pytest.CaptureFixture[str]) -> None:
    b = failed()
    b = replace(b, curves=tuple(curve for curve in b.curves if curve.name != "perplexity"))
    words = [line.split() for line in shown(compared(succeeded(), b), capsys)]
    assert ["duration", "17", "min", "11", "min", "40", "s", "-31%"] in words
    assert ["restarts", "0", "1", "+1"] in words
    assert ["outcome", "succeeded", "failed"] in words
    assert [line[-1] for line in words if line[:1] == ["perplexity"]] == ["-", "-"], "the lowest is the final one"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("JOB20261121-081530", ("JOB20261121-081530", None)),
        ("JOB20261121-081530/2", ("JOB20261121-081530", "0002")),
        ("JOB2026/0012/", ("JOB2026", "0012")),
        ("~/clusterctl/JOB20261121-081530", ("JOB20261121-081530", None)),
        ("~/clusterctl/JOB20261121-081530/3", ("JOB20261121-081530", "0003")),
        ("~/clusterctl/2", ("2", None)),
        ("/data/jobs/mine", ("/data/jobs/mine", None)),
        ("/data/jobs/mine/7", ("/data/jobs/mine", "0007")),
    ],
)
def test_a_run_is_named_by_its_job_and_a_number(text: str, found: tuple[Any, ...]) -> None:
    assert run_ref("~/clusterctl", text) == found
