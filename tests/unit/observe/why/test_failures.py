"""The output of many kinds of programs that failed, each with the cause that a senior engineer would name.

Each file of `failures/` begins with `exit: CODE` and `kind: KIND [or KIND ...]`. There may follow `says: TEXT`, which
the explanation has to contain, and `never: TEXT`, which neither it nor the advice may contain. `uncaught: CLASS` is the
exception that the runtime reported as the end of the program, "none" if it reported none. After an empty line comes the
output. The files were written without a look at the code, recorded from programs or from the formats they use.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from clusterctl.observe.why.exits import diagnose

FAILURES = sorted(Path(__file__).with_name("failures").glob("*.txt"))


def test_there_are_failures_of_many_kinds() -> None:
    assert len(FAILURES) >= 190


@pytest.mark.parametrize("path", FAILURES, ids=lambda path: path.stem)
def test_the_cause_is_named(path: Path) -> None:
    head, _, output = path.read_text(encoding="utf-8").partition("\n\n")
    facts = [line.partition(": ")[::2] for line in head.splitlines()]
    (code,) = [value for name, value in facts if name == "exit"]
    (kinds,) = [value.split(" or ") for name, value in facts if name == "kind"]
    reported = next((value.replace("none", "") for name, value in facts if name == "uncaught"), None)
    diagnosis = diagnose(int(code), output.splitlines(), uncaught=reported)
    assert diagnosis.kind in kinds, diagnosis
    explanation = f"{diagnosis.words} {diagnosis.error}".lower()
    assert [text for name, text in facts if name == "says" and text not in explanation] == [], diagnosis
    shown = f"{diagnosis.words} {diagnosis.advice}".lower()
    assert [text for name, text in facts if name == "never" and text in shown] == [], diagnosis
