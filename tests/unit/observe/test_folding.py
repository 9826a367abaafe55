"""Identical lines of several processes, shown once."""

from __future__ import annotations

from collections.abc import Iterable

from hypothesis import given, settings
from hypothesis import strategies as st

from clusterctl.config import from_values
from clusterctl.inventory import build
from clusterctl.observe import folding
from clusterctl.observe.folding import WINDOW_S, FoldedLine, Folder
from clusterctl.observe.follow import OutputLine

(NODE,) = build(from_values({"HOSTS": ["a"]})).nodes


def line(rank: int, text: str, t: float, role: str = "trainer") -> OutputLine:
    return OutputLine(t, NODE, role, rank, text)


def shown(lines: Iterable[FoldedLine]) -> list[tuple[str, set[int]]]:
    return [(one.first.text, one.ranks) for one in lines]


def fold_all(lines: Iterable[OutputLine], processes: dict[str, int] | None = None) -> list[FoldedLine]:
    """Fold lines that come in time order."""
    folder = Folder(processes or {})
    return [*(one for each in lines for one in folder.add(each, each.t)), *folder.rest()]


def test_lines_that_processes_print_about_the_same_time_are_shown_once_with_the_time_of_the_first() -> None:
    folded = fold_all([line(rank, "loss 0.31", 100 + rank / 10) for rank in (3, 0, 1, 2)])
    assert shown(folded) == [("loss 0.31", {0, 1, 2, 3})]
    assert folded[0].first.t == 100.3


def test_lines_of_other_roles_texts_or_times_stay_apart() -> None:
    lines = [line(0, "loss 1", 1), line(1, "loss 2", 1), line(0, "loss 1", 1, "pserver"), line(2, "loss 1", 2.5)]
    assert [ranks for _, ranks in shown(fold_all(lines))] == [{0}, {1}, {0}, {2}]


def test_a_line_is_shown_as_soon_as_all_processes_have_printed_it() -> None:
    folder = Folder({"trainer": 2})
    assert shown(folder.add(line(0, "a", 1), 50.0)) == []
    assert shown(folder.add(line(1, "a", 1), 50.1)) == [("a", {0, 1})]
    assert shown(folder.rest()) == []


def test_a_line_waits_for_others_no_longer_than_the_window_and_a_late_one_is_shown_alone() -> None:
    folder = Folder({"trainer": 3})
    assert shown(folder.add(line(0, "a", 1), 50.0)) == []
    assert shown(folder.add(line(1, "a", 1), 50.9)) == []
    assert shown(folder.due(50.9)) == []
    assert shown(folder.due(50.1 + WINDOW_S)) == [("a", {0, 1})]
    assert shown(folder.add(line(2, "a", 1), 51.2)) == []
    assert shown(folder.due(51.3 + WINDOW_S)) == [("a", {2})]


def test_lines_that_arrive_together_but_were_printed_at_other_times_stay_apart() -> None:
    """A node that was away delivers old lines."""
    folder = Folder({})
    lines = [*folder.add(line(0, "a", 100), 5.0), *folder.add(line(1, "a", 40), 5.1), *folder.rest()]
    assert shown(lines) == [("a", {0}), ("a", {1})]


def test_no_more_than_so_many_lines_and_characters_are_held_back() -> None:
    folder = Folder({})
    held = sum(1 - len(list(folder.add(line(0, str(n), 1), 1.0))) for n in range(10_000))
    assert held == folding.MOST_LINES
    folder = Folder({})
    passed = [one for n in range(300) for one in folder.add(line(0, f"{n}" + "x" * (64 << 10), 1), 1.0)]
    assert (300 - len(passed)) * (64 << 10) <= folding.MOST_CHARS


@settings(max_examples=50)
@given(
    lines=st.lists(st.builds(line, st.integers(0, 3), st.sampled_from("ab"), st.floats(0, 5)), max_size=40),
    order=st.booleans(),
    processes=st.sampled_from([{}, {"trainer": 4}, {"trainer": 1}]),
    window=st.floats(0, 3),
)
def test_each_process_is_shown_to_print_exactly_its_lines_in_their_order(
    lines: list[OutputLine], order: bool, processes: dict[str, int], window: float
) -> None:
    if order:
        lines.sort(key=lambda one: one.t)
    folder = Folder(processes)
    folded = [one for n, each in enumerate(lines) for one in folder.add(each, n * window)] + [*folder.rest()]
    for rank in range(4):
        assert [one.first.text for one in folded if rank in one.ranks] == [x.text for x in lines if x.rank == rank]
