"""The live screen: what it shows of a run in terminals of many sizes, and what its keys do."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from typing import Any

import pytest

from clusterctl.cli.screen.keys import names_of
from clusterctl.cli.screen.screen import Screen, wrapped
from clusterctl.cli.screen.table import ORDERS, ordered
from clusterctl.config.loader import from_values
from clusterctl.inventory import build
from clusterctl.observe.record.live import LiveRecord
from clusterctl.observe.record.model import ProcessRecord, TimedLine
from contract.security.liars import EVIL

T = 1.7e9
HINT = "Ctrl-C stops the job everywhere · d detaches"


def record(nodes: int = 4) -> LiveRecord:
    """A run with a pserver and a trainer on each node, in its third pass of five."""
    made = LiveRecord(build(from_values({"HOSTS": [f"host{number}" for number in range(nodes)]})).nodes)
    for event in events(nodes):
        made.take({"t": T, **event})
    return made


def events(nodes: int) -> Iterator[dict[str, Any]]:
    for node in range(nodes):
        for role in ("pserver", "trainer"):
            yield {"event": "spawned", "node": node, "role": role, "rank": node, "attempt": 1, "pid": 1}
    yield {"event": "phase", "node": 0, "phase": "running"}
    for step in range(1, 30):
        for node in range(nodes):
            about = {"node": node, "role": "trainer", "rank": node, "attempt": 1, "step": step, "pass": 2, "passes": 5}
            figures = {"loss": 9.0 / step, "samples_per_s": 1234.5, "compute": 0.5, "wait": 0.4, "wire": 0.1}
            yield {"event": "step", "t": T + step, **about, **figures}
            yield {"event": "log", "t": T + step, **about, "values": {"auc": 0.5}, "weight": 1}
            yield {"event": "usage", **about, "cpu": 0.99, "memory": 210_000_000}
    yield {
        "event": "pass",
        "node": 0,
        "role": "trainer",
        "rank": 0,
        "t": T + 20,
        "pass": 1,
        "passes": 5,
        "seconds": 60.0,
    }


def screen(of: LiveRecord, title: str = "JOB20261121-081530 run 1 · sync") -> Screen:
    return Screen(of, title, HINT, lambda: T + 50, T)


def select(shown: Screen, process: str) -> None:
    for _ in range(1000):
        if any(line.startswith(">") and process in line.split() for line in shown.lines(120, 60)):
            return
        shown.press("down")
    raise AssertionError(f"{process} is not there")


@pytest.mark.parametrize("size", [(80, 24), (200, 60), (60, 3)], ids=str)
@pytest.mark.parametrize("nodes", [1, 200])
def test_it_fits_terminals_of_all_sizes(nodes: int, size: tuple[int, int]) -> None:
    width, height = size
    shown = screen(record(nodes))
    for key in ("", "e", "l", "l", "s", "end", "home"):
        shown.press(key)
        lines = shown.lines(width, height)
        assert len(lines) <= height, key
        assert all(len(line) <= width for line in lines), key


def test_at_80_by_24_all_of_it_is_there_and_no_word_is_cut() -> None:
    lines = screen(record()).lines(80, 24)
    wide = " ".join(screen(record()).lines(300, 24)).split()
    assert [word for line in lines for word in line.split() if word not in wide] == []
    text = "\n".join(lines)
    for word in ("2/5 passes", "00:00:50", "left", "samples/s", "loss", "trainer3", "pserver3", "99%", "210 MB", "0.5"):
        assert word in text, word


def test_the_time_left_follows_from_the_last_whole_pass() -> None:
    made = record()
    assert made.time_left_s(T + 50) == 3 * 60.0 - 30.0
    assert "2 min 30 s left" in screen(made).lines(120, 24)[0]
    made.take({"event": "pass", "t": T, "node": 0, "role": "trainer", "rank": 0, "seconds": float("nan")})
    assert made.time_left_s(T + 50) == 150.0


def test_a_narrow_terminal_shows_the_time_left_of_a_run_with_a_name_and_not_its_step_and_mode() -> None:
    shown = screen(record(), "JOB20261121-081530 run 1 (lr-0.1) · sync")
    assert shown.lines(80, 24)[0] == "JOB20261121-081530 run 1 (lr-0.1) · 2/5 passes · 00:00:50 · 2 min 30 s left"
    assert "· sync ·" in shown.lines(120, 24)[0]


def test_metrics_with_long_names_are_told_apart() -> None:
    made = record()
    names = ("held_out_nll", "held_out_accuracy_of_rare_words", "held_out_accuracy_of_all_words")
    values = dict.fromkeys(names, 0.25)
    made.take({"t": T, "event": "log", "node": 0, "role": "trainer", "rank": 0, "pass": 2, "values": values})
    lines = screen(made).lines(200, 24)
    [headings] = [line.split() for line in lines if "samples/s" in line.split() and "state" in line.split()]
    assert headings[-3:] == ["held_out_nll", "held_out…re_words", "held_out…ll_words"]


def test_the_odd_ones_stand_first() -> None:
    made = record(200)
    about = {"t": T + 60, "attempt": 1, "role": "trainer"}
    made.take({**about, "event": "step", "node": 150, "rank": 150, "wait": 0.0, "step": 30})
    made.take({**about, "event": "exited", "node": 120, "rank": 120, "exit_code": 1, "stopping": False})
    made.take({**about, "event": "stalled", "node": 110, "rank": 110, "message": "no step for 600 s"})
    made.take({**about, "event": "spawned", "node": 130, "rank": 130, "attempt": 2})
    made.take({**about, "event": "step", "node": 130, "rank": 130, "attempt": 2, "step": 30, "wait": 0.4})
    names = [process.name for process in ordered(list(made.processes.values()), "odd first")][:5]
    assert names == ["trainer120", "trainer110", "trainer150", "trainer130", "trainer0"]
    lines = "\n".join(screen(made).lines(120, 24))
    assert "trainer120" in lines
    assert "more: " in lines


def test_the_straggler_is_seen_among_many() -> None:
    made = record(64)
    made.take({"event": "step", "t": T + 60, "node": 63, "role": "trainer", "rank": 63, "attempt": 1, "wait": 0.01})
    [first] = [line for line in screen(made).lines(120, 24) if line.startswith(">")]
    assert "trainer63" in first
    assert "slowest" in first


def test_each_order_sorts_by_its_figure() -> None:
    made = record(3)
    for rank, memory in enumerate((10, 30, 20)):
        about = {"t": T + 60, "node": rank, "role": "trainer", "rank": rank, "attempt": 1}
        made.take({**about, "event": "usage", "cpu": 0.5, "memory": memory * 10**8})
    trainers = [process.name for process in ordered(list(made.processes.values()), "mem")][:3]
    assert trainers == ["trainer1", "trainer2", "trainer0"]
    shown = screen(made)
    for order in (*ORDERS[1:], ORDERS[0]):
        shown.press("s")
        assert f"s sort ({order})" in shown.lines(200, 24)[-1]


def test_the_selected_process_stays_selected_when_rows_change_places() -> None:
    made = record(4)
    shown = screen(made)
    select(shown, "trainer2")
    made.take({"event": "exited", "t": T, "node": 3, "role": "trainer", "rank": 3, "exit_code": 1, "stopping": False})
    [line] = [line for line in shown.lines(120, 40) if line.startswith(">")]
    assert "trainer2" in line
    shown.press("l")
    assert shown.wanted_log is made.processes["trainer", 2]


def test_arrows_reach_every_process_of_a_large_run() -> None:
    shown = screen(record(200))
    seen: set[str] = set()
    for _ in range(60):
        seen |= {
            word for line in shown.lines(120, 24) for word in line.split() if word.startswith(("trainer", "pserver"))
        }
        shown.press("page down")
    assert {f"{role}{rank}" for role in ("trainer", "pserver") for rank in range(200)} <= seen


def test_only_the_lines_on_the_screen_are_wrapped_and_those_only_to_a_length(monkeypatch: pytest.MonkeyPatch) -> None:
    """A redraw that wrapped 500 lines of 64 kB took minutes."""
    wrap, sizes = textwrap.wrap, list[int]()

    def counting(text: str, *arguments: Any, **options: Any) -> list[str]:
        sizes.append(len(text))
        return wrap(text, *arguments, **options)

    monkeypatch.setattr(textwrap, "wrap", counting)
    shown = screen(record())
    shown.press("l")
    shown.log.extend(TimedLine(T, f"{number:03}" + "x\t" * 500_000) for number in range(500))
    lines = shown.lines(100, 40)
    assert any("... (996,003 more characters)" in line for line in lines)
    assert (len(sizes), max(sizes) < 5000) == (1, True)
    shown.press("home")
    assert any(" 000x" in line for line in shown.lines(100, 40))


def test_a_log_and_the_events_are_shown_newest_last_and_scroll() -> None:
    shown = screen(record())
    shown.press("l")
    shown.log.extend(TimedLine(T + number, f"line {number} {EVIL}") for number in range(100))
    assert "line 99" in "\n".join(shown.lines(80, 24))
    shown.press("page up")
    assert "line 99" not in "\n".join(shown.lines(80, 24))
    shown.press("home")
    assert "line 0 " in "\n".join(shown.lines(80, 24))
    shown.press("e")
    assert "all processes are running" in "\n".join(shown.lines(80, 24))
    shown.press("escape")
    assert any(line.startswith(">") for line in shown.lines(80, 24))


def test_long_lines_are_broken_between_words() -> None:
    lines = wrapped(T, "word " * 30, 40)
    assert all(len(line) <= 40 for line in lines)
    assert set(" ".join(lines).split()[1:]) == {"word"}


def test_keys_are_recognised_and_other_sequences_are_dropped() -> None:
    data = b"s\x1b[A\x1bOB\x1b[5~q\x1b[1;5Cx\x00\xff\x1b"
    assert names_of(data) == ["s", "up", "down", "page up", "q", "x", "escape"]


def test_the_throughput_of_a_run_that_has_ended_is_its_last_one() -> None:
    made = record(2)
    for rank in range(2):
        about = {"t": T + 99, "node": rank, "role": "trainer", "rank": rank, "attempt": 1}
        made.take({**about, "event": "exited", "exit_code": 0, "stopping": False})
    assert made.samples_per_s == 2 * 1234.5
    assert "2,469 samples/s" in screen(made).summary()


def test_the_summary_of_a_pass_is_the_mean_over_the_whole_pass_and_all_trainers() -> None:
    made = LiveRecord(build(from_values({"HOSTS": ["a", "b"]})).nodes)

    def log(rank: int, pass_: int, value: float, weight: float = 1.0) -> None:
        about = {"t": T, "node": rank, "role": "trainer", "rank": rank, "attempt": 1}
        made.take({**about, "event": "log", "pass": pass_, "values": {"auc": value}, "weight": weight})

    log(0, 0, 0.1)
    log(1, 0, 0.2)
    assert made.new_passes() == [], "the pass may not be over"
    log(0, 0, 0.9, weight=2)
    log(0, 1, 0.5)
    assert made.new_passes() == [], "trainer 1 is still in it"
    log(1, 1, 0.5)
    [over] = made.new_passes()
    assert (over.pass_, over.ranks) == (0, {0, 1})
    assert over.values["auc"] == pytest.approx((0.1 + 0.2 + 2 * 0.9) / 4)
    assert made.new_passes() == []
    for rank in range(2):
        made.take(
            {
                "event": "exited",
                "t": T,
                "node": rank,
                "role": "trainer",
                "rank": rank,
                "exit_code": 0,
                "stopping": False,
            }
        )
    assert [over.pass_ for over in made.new_passes()] == [1]


def test_it_shows_whom_all_wait_for_and_what_was_not_saved_until_that_is_over() -> None:
    made = record()
    step = {"t": T + 31, "event": "step", "node": 0, "role": "pserver", "rank": 0, "attempt": 1}
    made.take({**step, "awaits": [1], "awaited": 1, "waiting": 3, "awaits_s": 13.2})
    dropped = {"event": "cut_dropped", "node": 0, "message": "no model this time", "trainers": [1], "saves": ["model"]}
    made.take({"t": T + 31, **dropped})
    waits = "3 trainers have been waiting for trainer1 for 13 s"
    for size in ((80, 24), (120, 40)):
        lines = screen(made).lines(*size)
        assert waits in lines
        assert [line.partition("  ")[2] for line in lines if "this time" in line] == ["no model this time"]
    made.take(step)
    made.take({"t": T + 32, "event": "saved", "node": 0, "tag": "step-9", "complete": True, "checkpoint": True})
    text = "\n".join(screen(made).lines(80, 24))
    assert waits not in text
    assert "no model this time" in text
    made.take({"t": T + 33, "event": "saved", "node": 0, "tag": "at-step-9", "complete": True})
    assert "no model this time" not in "\n".join(screen(made).lines(80, 24))


def test_it_has_the_processes_that_a_node_reports_and_not_those_that_conf_py_plans_there() -> None:
    nodes = build(from_values({"HOSTS": ["a", "b", "c"]})).nodes
    made = LiveRecord(nodes)
    present = [ProcessRecord("trainer", 0, node=nodes[0]), ProcessRecord("pserver", 1, node=nodes[1])]
    made.begin_from(present, "running", [])
    assert sorted(made.processes) == [("pserver", 1), ("pserver", 2), ("trainer", 0), ("trainer", 2)]
