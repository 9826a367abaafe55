"""What answers of nodes look like: checked where they arrive, so that nobody later stumbles over one that lies.

A shape is a function that says whether a value has it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from clusterctl.common.paths import is_job_id
from clusterctl.common.safe_json import is_whole

Shape = Callable[[Any], bool]
#: States of jobs and runs, the worst first.
STATES = ("unknown", "lost", "failed", "stopped", "running", "starting", "succeeded", "dispatched")
ROLES = ("pserver", "trainer", "scheduler")
END_OF_TIME = 1e11  # seconds since the epoch; no calendar goes on for longer
LONGEST_LINE = 64 << 10  # of a log, as agents cut it
MOST_DIGITS = 9


def text(value: Any) -> bool:
    return isinstance(value, str)


def line(value: Any) -> bool:
    return text(value) and len(value) <= LONGEST_LINE


def number(value: Any) -> bool:
    """NaN and infinity are numbers here: a loss may be one."""
    return isinstance(value, float) or is_whole(value)


def moment(value: Any) -> bool:
    return number(value) and math.isfinite(value) and 0 <= value < END_OF_TIME


def count(value: Any) -> bool:
    return is_whole(value) and value >= 0


def run_name(value: Any) -> bool:
    return text(value) and value.isascii() and value.isdigit() and len(value) <= MOST_DIGITS


def job_id(value: Any) -> bool:
    """It becomes the name of a directory here."""
    return text(value) and is_job_id(value) and len(value) < 2 * len("JOB20261121-081530-")


def one_of(*words: str) -> Shape:
    return lambda value: text(value) and value in words


def maybe(shape: Shape) -> Shape:
    """None, or nothing at all, will do."""
    return lambda value: value is None or shape(value)


def all_of(*shapes: Shape) -> Shape:
    return lambda value: all(shape(value) for shape in shapes)


def list_of(shape: Shape) -> Shape:
    return lambda value: isinstance(value, list) and all(map(shape, value))


def pair_of(*shapes: Shape) -> Shape:
    def fits(value: Any) -> bool:
        return (
            isinstance(value, list)
            and len(value) == len(shapes)
            and all(s(v) for s, v in zip(shapes, value, strict=True))
        )

    return fits


def each_value(shape: Shape) -> Shape:
    return lambda value: isinstance(value, dict) and all(map(shape, value.values()))


def record(**fields: Shape) -> Shape:
    """An object with these fields, and perhaps others that nobody looks at."""
    return lambda value: isinstance(value, dict) and not misfits(fields, value)


def misfits(fields: Mapping[str, Shape], value: Mapping[str, Any]) -> list[str]:
    return [name for name, shape in fields.items() if not shape(value.get(name))]


def names_process(value: Mapping[str, Any]) -> bool:
    """By role and rank, or not at all."""
    return (value.get("role") is None) == (value.get("rank") is None)


CAUSE = all_of(
    record(
        kind=maybe(text),
        message=maybe(text),
        node=maybe(count),
        role=maybe(text),
        rank=maybe(count),
        tail=maybe(list_of(text)),
    ),
    names_process,
)
_END: Mapping[str, Shape] = {"state": one_of(*STATES), "cause": maybe(CAUSE)}
ENDED = record(**_END)
PROCESS = record(
    role=one_of(*ROLES),
    rank=count,
    state=text,
    pid=maybe(count),
    restarts=maybe(count),
    exit_code=maybe(is_whole),
)
MEMBERSHIP: Mapping[str, Shape] = {
    "started": maybe(moment),
    "members": maybe(list_of(count)),
    "left_out": maybe(list_of(record(node=count, message=text))),
}
RUN = record(run=run_name, state=one_of(*STATES), **MEMBERSHIP)
JOB = record(
    job=job_id, runs=list_of(RUN), record=record(workspace=text, content=text, files=count, bytes=count, t=moment)
)
RESUMED = record(run=run_name, step=count)
#: By operation, what is looked at in its answer.
ANSWERS: Mapping[str, Mapping[str, Shape]] = {
    "status": {
        "job": job_id,
        "dir": text,
        "run": maybe(run_name),
        "state": one_of(*STATES),
        "mode": maybe(text),
        "now": maybe(moment),
        "resumed": maybe(RESUMED),
        "waits_for": maybe(list_of(text)),
        "ended": maybe(record(t=moment, **_END)),
        "processes": list_of(PROCESS),
        **MEMBERSHIP,
    },
    "jobs": {"jobs": list_of(JOB)},
    "story": {
        "job": job_id,
        "run": maybe(run_name),
        "state": one_of(*STATES),
        "started": maybe(moment),
        "events": list_of(record()),
        "outputs": list_of(
            record(
                role=one_of(*ROLES),
                rank=count,
                attempt=count,
                lines=list_of(pair_of(moment, line)),
                ours=maybe(list_of(count)),
            )
        ),
        "seen": maybe(moment),
        "booted": maybe(moment),
        "free_bytes": maybe(count),
        "python": maybe(text),
    },
    "stop": {
        "job": job_id,
        "dir": text,
        "run": maybe(run_name),
        "was": text,
        "killed": count,
        "survivors": count,
        "leftovers": count,
        "left": list_of(record(pid=count, command=text)),
        "ports_busy": list_of(count),
        "holders": list_of(record(port=count, pid=maybe(count), uid=maybe(count), name=maybe(text))),
        **MEMBERSHIP,
    },
}
#: What `status` shows of a process besides: it is the process's own word, and left out where it is not like this.
OWN_WORDS: Mapping[str, Shape] = {
    **dict.fromkeys(("pass", "step", "memory", "lost"), count),
    **dict.fromkeys(("loss", "samples_per_s", "compute", "wait", "wire", "cpu"), number),
    "started": moment,
    "values": each_value(number),
    "staleness": list_of(pair_of(count, count)),
    "tables": list_of(lambda table: isinstance(table, dict) and text(table.get("name")) and _counts(table)),
}
LINE = pair_of(moment, count, line, count)
EVENT = record(event=text, t=moment, node=maybe(count))
#: What `logs` and `follow` say, one or the other of it in a message; and their last word.
NEWS = record(
    run=maybe(run_name),
    streams=maybe(list_of(record(role=one_of(*ROLES), rank=count, at=maybe(count)))),
    events=maybe(list_of(EVENT)),
    at=maybe(count),
    lines=maybe(list_of(LINE)),
    held=maybe(list_of(pair_of(count, count, count))),
)
FOLLOWED = record(node=record(state=one_of(*STATES)))


def _counts(table: Mapping[str, Any]) -> bool:
    return all(is_whole(value) for name, value in table.items() if name != "name")


def check(operation: str, answer: Mapping[str, Any]) -> None:
    """Raises ValueError naming the fields of an answer that are not what they should be."""
    wrong = misfits(ANSWERS.get(operation, {}), answer)
    if wrong:
        raise ValueError(f"{operation}: {', '.join(wrong)}")


def news(message: dict[str, Any]) -> dict[str, Any]:
    """The message. Raises ValueError when it is none of `logs` or `follow`."""
    if not NEWS(message) or ("events" in message and "at" not in message):
        raise ValueError(f"no news: {', '.join(message)}"[:200])
    return message


def followed(last: dict[str, Any]) -> dict[str, Any]:
    """The last word of `follow`. Raises ValueError when it is none."""
    if not FOLLOWED(last):
        raise ValueError("no state at the end")
    return last


def own_word(name: str, value: Any) -> Any:
    """What a process says of itself, or None where it makes no sense."""
    return value if OWN_WORDS[name](value) else None
