"""Tracebacks of other ranks, each in one line with its place."""

from __future__ import annotations

from clusterctl.cli.tracebacks import TracebackFolder

LINES = """\
Traceback (most recent call last):
  File "/root/clusterctl/JOB1/train.py", line 12, in <module>
    main()
  File "/root/clusterctl/JOB1/model.py", line 7, in main
    values["learning_rate"]
    ~~~~~~^^^^^^^^^^^^^^^^^
KeyError: 'learning_rate'
""".splitlines()


def shown(lines: list[str]) -> list[str]:
    folder = TracebackFolder()
    return [text for line in lines for text in [folder.take(line)] if text is not None]


def test_a_traceback_is_one_line_with_the_innermost_place() -> None:
    assert shown(LINES) == ["KeyError: 'learning_rate' (model.py:7)"]


def test_without_the_lines_of_code_it_is_the_same() -> None:
    """A node sends only lines that match a pattern."""
    assert shown([line for line in LINES if "File" in line or "Error" in line or "Trace" in line]) == shown(LINES)


def test_the_place_is_in_the_program_not_in_a_library() -> None:
    library = ['  File "/usr/lib/python3.11/json/decoder.py", line 355, in raw_decode', "    raise"]
    deep = ['  File "/venv/lib/python3.11/site-packages/numpy/core.py", line 1, in x', "    y()"]
    assert shown([*LINES[:5], *library, *deep, "ValueError: no"]) == ["ValueError: no (model.py:7)"]


def test_other_lines_stay_and_a_second_traceback_is_another_line() -> None:
    lines = ["warning: slow", *LINES, "During handling of the above exception, another exception occurred:", *LINES]
    one = shown(LINES)
    assert shown(lines) == [
        "warning: slow",
        *one,
        "During handling of the above exception, another exception occurred:",
        *one,
    ]


def test_a_frame_without_a_traceback_is_not_shown() -> None:
    assert shown(['  File "/root/train.py", line 1, in <module>', "Exception ignored"]) == ["Exception ignored"]
