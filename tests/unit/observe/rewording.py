"""Runs with all of our texts reworded: `why` must conclude the same from them."""

from __future__ import annotations

import codecs
import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from clusterctl.observe.why.evidence import Incident
from clusterctl.observe.why.first_cause import Explanation, explain
from clusterctl.observe.why.node_report import NodeReport

Reword = Callable[[str], str]
TEXTS = ("message", "why", "what", "count", "line")  # fields of events and causes that are for people to read
#: The message of a runtime error is ours too; its class is not a text.
RUNTIME_ERROR = re.compile(r"^(clusterctl\.runtime\.errors\.\w+): (.*)$")
_numbers = itertools.count()

#: Ways to reword a text: consistently, to nothing, and to something new each time.
WAYS: Mapping[str, Reword] = {
    "another language": lambda text: codecs.encode(text, "rot13"),
    "without digits": lambda text: re.sub(r"\d+", "some", text),
    "nothing": lambda text: "",
    "never the same": lambda text: f"gobbledygook {next(_numbers)}",
}

Message = dict[str, Any]


def reworded(answer: Message, reword: Reword) -> Message:
    """Return the answer with all of our texts reworded and the output of programs unchanged."""
    outputs = [
        {**output, "lines": [[t, text] for (t, _), text in zip(output["lines"], _texts(output, reword), strict=True)]}
        for output in answer["outputs"]
    ]
    return {**answer, "events": [_event(event, reword) for event in answer["events"]], "outputs": outputs}


def _event(event: Message, reword: Reword) -> Message:
    new = {name: reword(value) if name in TEXTS and isinstance(value, str) else value for name, value in event.items()}
    if isinstance(event.get("tail"), list):
        new["tail"] = _lines(event["tail"], event.get("ours", ()), reword)
    if isinstance(event.get("cause"), dict):
        new["cause"] = _event(event["cause"], reword)
    return new


def _texts(output: Message, reword: Reword) -> list[str]:
    return _lines([text for _, text in output["lines"]], output["ours"], reword)


def _lines(lines: Sequence[str], ours: Sequence[int], reword: Reword) -> list[str]:
    return [reword(line) if at in ours else _program_line(line, reword) for at, line in enumerate(lines)]


def _program_line(line: str, reword: Reword) -> str:
    error = RUNTIME_ERROR.match(line)
    return f"{error[1]}: {reword(error[2])}" if error else line


def conclusion(explanation: Explanation) -> Message:
    """Return everything in an explanation except its texts."""
    series = {name: tuple(map(_conclusion, getattr(explanation, name))) for name in ("then", "before", "alike", "open")}
    return {
        "cause": explanation.cause and _conclusion(explanation.cause),
        **series,
        **{
            name: getattr(explanation, name)
            for name in ("notes", "stopped", "not_heard_of", "pass_", "step", "ended_t")
        },
        "checkpoint": explanation.checkpoint and explanation.checkpoint["tag"],
    }


def _conclusion(one: Incident) -> Message:
    diagnosis = replace(one.diagnosis, words="", error=None)
    return {**vars(one), "message": "", "diagnosis": diagnosis, "lines": tuple(t for t, _ in one.lines)}


def assert_wording_does_not_matter(
    reports: Sequence[NodeReport], lead: int, silent: Mapping[int, str], state: str, explanation: Explanation
) -> None:
    """Assert that these reports, which have all fields, lead to `explanation`, and so do their reworded versions."""
    expected = conclusion(explanation)
    assert conclusion(explain(reports, lead, silent, state)) == expected
    for way, reword in WAYS.items():
        other = [replace(report, answer=reworded(report.answer, reword)) for report in reports]
        quiet = {node: reword(reason) for node, reason in silent.items()}
        assert conclusion(explain(other, lead, quiet, state)) == expected, way
