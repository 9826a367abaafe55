"""The lines below the status table: staleness of pushes, and embedding tables."""

from __future__ import annotations

from clusterctl.cli.pserver_counts import count_lines
from clusterctl.config.loader import from_values
from clusterctl.inventory import build
from clusterctl.observe.record.model import ProcessRecord

NONE = {"rows": 0, "bytes": 0, "looked_up": 0, "hits": 0, "admitted": 0, "refused": 0, "expired": 0, "evicted": 0}


def process(role: str, **figures: object) -> ProcessRecord:
    record = ProcessRecord(role, 0, node=build(from_values({"HOSTS": ["a"]})).nodes[0])
    record.take_figures(figures)
    return record


def pserver(staleness: list[list[int]], **table: int) -> ProcessRecord:
    return process("pserver", staleness=staleness, tables=[{"name": "word", **NONE, **table}])


def test_pushes_are_counted_over_all_pservers_in_powers_of_two() -> None:
    processes = [pserver([[0, 5], [1, 2]]), pserver([[0, 5], [2, 3], [3, 3], [9, 2]]), process("trainer")]
    assert count_lines(processes)[0] == "staleness of 20 pushes  0: 50%  1: 10%  2-3: 30%  8-15: 10%"


def test_an_embedding_is_summed_over_pservers_and_shows_its_evictions() -> None:
    processes = [pserver([], rows=10, bytes=1000, looked_up=100, hits=80, evicted=3), pserver([], rows=5, bytes=500)]
    assert count_lines(processes) == ["table word  15 rows, 1.5 kB, 80% of 100 lookups hit, 3 evicted"]


def test_a_run_that_counts_nothing_has_no_lines() -> None:
    assert count_lines([process("pserver", staleness=None, tables=None), process("trainer")]) == []
