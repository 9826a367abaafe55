"""The split of the command line into our options and the training program's arguments."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterctl.cli.app import START_OPTIONS, parse
from clusterctl.cli.arguments import edit_distance_is_one, split, take_program_options
from clusterctl.errors import UsageError


@pytest.mark.parametrize(
    "argv",
    [
        ["--conf", "c.py", "--only=node[0-1]", "--json", "-q", "-v", "status", "JOB1"],
        ["status", "JOB1", "--conf=c.py", "--only", "node[0-1]", "--json", "--quiet", "--verbose"],
        ["status", "--json", "--conf", "c.py", "JOB1", "-qv".replace("qv", "q"), "--only=node[0-1]", "--verbose"],
    ],
)
def test_global_options_are_accepted_anywhere(argv: list[str]) -> None:
    arguments = split(argv)
    options = arguments.options
    assert (options.conf, options.only) == ("c.py", "node[0-1]")
    assert options.json
    assert options.quiet
    assert options.verbose
    assert arguments.ours == ["status", "JOB1"]


def test_arguments_after_two_dashes_are_left_alone() -> None:
    arguments = split(["exec", "--json", "--", "ls", "--conf", "--", "-q", "--only"])
    assert arguments.program == ["ls", "--conf", "--", "-q", "--only"]
    assert arguments.ours == ["exec"]
    assert arguments.options.json
    assert arguments.options.conf is None


@pytest.mark.parametrize("option", ["--conf", "--only"])
def test_an_option_without_its_value_is_a_usage_error(option: str) -> None:
    with pytest.raises(UsageError, match="needs a value"):
        split(["status", option])


def test_values_may_contain_anything() -> None:
    assert split(["--conf=a=b", "status"]).options.conf == "a=b"
    assert split(["--only=", "status"]).options.only == ""


def test_unknown_options_with_a_value_reach_the_program_in_their_order() -> None:
    words = ["start", "--job_workspace=J", "--num_passes=5", "--detach", "--config=x.py", "--lr=a=b", "-d"]
    assert take_program_options(words, START_OPTIONS) == (
        ["start", "--job_workspace=J", "--detach", "-d"],
        ["--num_passes=5", "--config=x.py", "--lr=a=b"],
    )


@pytest.mark.parametrize(
    ("word", "near"),
    [
        ("--job_workspaces=x", "--job.workspace"),
        ("--job_workspac=x", "--job.workspace"),
        ("--jbo_workspace=x", "--job.workspace"),
        ("--job_dispatch_packag=x", "--job.dispatch.package"),
        ("--con=x", "--conf"),
        ("--onyl=x", "--only"),
        ("--plam=x", "--plan"),
        ("--detatch=x", "--detach"),
    ],
)
def test_an_option_one_letter_away_from_ours_is_an_error_with_a_suggestion(word: str, near: str) -> None:
    with pytest.raises(UsageError, match=f"did you mean {near}"):
        take_program_options(["start", word], START_OPTIONS)


@pytest.mark.parametrize("word", ["--job_dispatch-package=x", "--job-dispatch_package=x"])
def test_a_mixed_spelling_of_our_option_is_not_passed_to_the_program(word: str) -> None:
    with pytest.raises(UsageError, match="did you mean"):
        take_program_options(["start", word], START_OPTIONS)


def test_an_unknown_option_without_a_value_is_an_error_that_says_how_to_pass_it_on() -> None:
    with pytest.raises(UsageError, match="--fast is not an option of start") as raised:
        parse(["start", "--job_workspace", "J", "--fast"])
    assert "--fast=VALUE" in str(raised.value.hint)


def test_arguments_after_two_dashes_come_after_the_other_program_options() -> None:
    arguments = parse(["--json", "start", "--passes=2", "--job_workspace", "J", "--", "--fast", "more"])
    assert arguments.ours == ["start", "--job_workspace", "J"]
    assert arguments.program == ["--passes=2", "--fast", "more"]


@pytest.mark.parametrize("command", ["status", "stop", "logs", "dispatch"])
def test_other_commands_take_no_program_arguments(command: str) -> None:
    with pytest.raises(UsageError, match=f"{command} takes no arguments after --"):
        parse([command, "--", "x"])
    assert parse([command, "--lr=1"]).ours == [command, "--lr=1"], "left for the option parser to refuse"


@pytest.mark.parametrize(
    ("a", "b", "one"),
    [
        ("conf", "conf", False),
        ("conf", "con", True),
        ("conf", "confi", True),
        ("conf", "cnof", True),
        ("conf", "cofn", True),
        ("conf", "bonf", True),
        ("conf", "config", False),
        ("conf", "fnoc", False),
        ("conf", "", False),
        ("", "a", True),
        ("", "", False),
        ("ab", "ba", True),
        ("abc", "cab", False),
    ],
)
def test_one_edit_is_one_letter_added_removed_changed_or_swapped(a: str, b: str, one: bool) -> None:
    assert edit_distance_is_one(a, b) is one
    assert edit_distance_is_one(b, a) is one


def distance(a: str, b: str) -> int:
    """The optimal string alignment distance, by the textbook algorithm."""
    rows = [[i + j if i * j == 0 else 0 for j in range(len(b) + 1)] for i in range(len(a) + 1)]
    for i in range(1, len(a) + 1):
        for j in range(1, len(b) + 1):
            change = rows[i - 1][j - 1] + (a[i - 1] != b[j - 1])
            rows[i][j] = min(rows[i - 1][j] + 1, rows[i][j - 1] + 1, change)
            if i > 1 and j > 1 and a[i - 1] == b[j - 2] and a[i - 2] == b[j - 1]:
                rows[i][j] = min(rows[i][j], rows[i - 2][j - 2] + 1)
    return rows[-1][-1]


@given(st.text("abc", max_size=6), st.text("abc", max_size=6))
def test_one_edit_agrees_with_the_textbook(a: str, b: str) -> None:
    assert edit_distance_is_one(a, b) is (distance(a, b) == 1)
