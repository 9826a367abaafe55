"""The lines below the table of a live run: trainers that the others wait for, and dropped cuts."""

from __future__ import annotations

import time
from typing import Any

import pytest

from clusterctl.cli.screen.notes import note_lines
from clusterctl.config.loader import from_values
from clusterctl.inventory import build
from clusterctl.observe.record.model import ProcessRecord

NODE = build(from_values({"HOSTS": ["a"]})).nodes[0]


def pserver(rank: int = 0, state: str = "ready", **figures: Any) -> ProcessRecord:
    record = ProcessRecord("pserver", rank, state, node=NODE)
    record.take_figures(figures)
    return record


@pytest.mark.parametrize(
    ("awaits", "awaited", "waiting", "for_s", "line"),
    [
        ([1], 1, 3, 13.4, "3 trainers have been waiting for trainer1 for 13 s"),
        ([0], 1, 1, 125.0, "1 trainer has been waiting for trainer0 for 2 min 5 s"),
        ([1, 4], 2, 2, 3.0, "2 trainers have been waiting for trainer1 and trainer4 for 3 s"),
        ([1, 2, 5], 3, 1, 3.9, "1 trainer has been waiting for trainer1, trainer2 and trainer5 for 3 s"),
        (
            [0, 1, 2, 3],
            6,
            1200,
            60.0,
            "1,200 trainers have been waiting for trainer0, trainer1, trainer2, trainer3 and 2 more for 1 min 0 s",
        ),
        (
            [0, 1, 2, 3],
            5,
            2,
            9,
            "2 trainers have been waiting for trainer0, trainer1, trainer2, trainer3 and 1 more for 9 s",
        ),
    ],
)
def test_it_names_whom_trainers_wait_for(
    awaits: list[int], awaited: int, waiting: int, for_s: float, line: str
) -> None:
    assert note_lines([pserver(awaits=awaits, awaited=awaited, waiting=waiting, awaits_s=for_s)], None) == [line]


def test_nothing_is_said_of_a_pserver_that_reports_no_wait_or_does_not_serve() -> None:
    wait = {"awaits": [1], "awaited": 1, "waiting": 1, "awaits_s": 5.0}
    assert note_lines([pserver()], None) == []
    assert note_lines([pserver(state="failed", **wait), pserver(1, **wait)], None) == []
    trainer = ProcessRecord("trainer", 0, "running", node=NODE)
    trainer.take_figures(wait)
    assert note_lines([trainer], None) == []


@pytest.mark.parametrize(
    ("name", "junk"),
    [("awaits", [1, -1]), ("awaits", list(range(5))), ("awaits", 1), ("waiting", "1"), ("awaits_s", float("inf"))],
)
def test_a_malformed_report_of_a_wait_is_dropped(name: str, junk: object) -> None:
    assert note_lines([pserver(**{"awaits": [1], "awaited": 1, "waiting": 1, "awaits_s": 5.0, name: junk})], None) == []


def test_a_dropped_cut_is_shown_with_its_time() -> None:
    t = time.mktime((2026, 11, 21, 14, 3, 22, 0, 0, -1))
    message = (
        "no checkpoint this time: a push of trainer1 did not reach all pservers in 5 s; the next one comes at its time"
    )
    assert note_lines([], {"t": t, "message": message}) == [f"14:03:22  {message}"]
