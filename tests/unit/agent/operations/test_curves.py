"""The curves of a run from its event log: the processes of the run alone, and torn lines skipped."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from clusterctl.agent.operations import curves as operation
from clusterctl.agent.operations.curves import curves
from clusterctl.common.errors import AgentError
from clusterctl.common.files import write_json
from clusterctl.common.paths import JobPaths, RunPaths
from unit.agent.operations.test_logs import JOB, Listening
from unit.agent.specs import spec_json

PROCESSES = [
    {"role": "pserver", "rank": 3, "index": 0},
    {"role": "trainer", "rank": 6, "index": 0},
    {"role": "trainer", "rank": 7, "index": 1},
]


@pytest.fixture
def run(tmp_path: Path) -> RunPaths:
    job = JobPaths(tmp_path / JOB)
    made = job.run("0001")
    made.dir.mkdir(parents=True)
    write_json(job.record, {"job": JOB})
    write_json(made.spec, spec_json(processes=PROCESSES))
    return made


def ask(run: RunPaths, **request: Any) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Return the messages and the final answer."""
    with Listening() as listening:
        done = curves(run.job.dir.parent, {"ref": JOB, "buckets": 100, **request}, listening.peer)
    return [message for message in listening.messages if message != {"alive": True}], done


def line(role: str, rank: Any, t: float = 1.7e9, **facts: Any) -> bytes:
    event = {"event": "step", "t": t, "role": role, "rank": rank, "attempt": 1, "step": 1, "loss": 0.5, **facts}
    return json.dumps(event).encode() + b"\n"


def test_each_process_of_the_run_has_a_message_with_its_curves(run: RunPaths) -> None:
    events = [line("trainer", 7), line("trainer", 6, samples=2), line("pserver", 3, tables=[{"name": "e", "rows": 9}])]
    others = [
        line("trainer", 8),
        line("scheduler", 6),
        line("trainer", None),
        line("trainer", [6]),
        b'{"event": "x"}\n',
    ]
    run.events.write_bytes(b"".join([*events, *others]))
    messages, done = ask(run)
    assert (done["job"], done["run"], done["left"], done["at"]) == (JOB, "0001", {}, run.events.stat().st_size)
    assert [[(c["role"], c["rank"], c["of"], c["name"]) for c in message["curves"]] for message in messages] == [
        [("pserver", 3, "step", "loss"), ("pserver", 3, "table", "e")],
        [("trainer", 6, "step", "loss")],
        [("trainer", 7, "step", "loss")],
    ]
    assert messages[1]["curves"][0] == {
        **{"role": "trainer", "rank": 6, "of": "step", "name": "loss", "undone": False},
        "buckets": [[1.7e9, 1.7e9, 1, 1, 1, 2.0, 0.5, 0.5, 0.5, 0.5, 0]],
    }


def test_torn_lines_are_skipped_however_many_they_are(run: RunPaths) -> None:
    torn = [b'{"event": "st', b"\xff\x00", b"[" * 100_000, b"7", b'{"a": 1} {"b": 2}', b"[]", b""]
    run.events.write_bytes(
        b"\n".join([*torn, line("trainer", 6)])
        + b"not JSON\n" * 150_000  # more than is read at once
        + line("trainer", 6, t=1.7e9 + 1)
        + b'{"event": "unfinished'
    )
    messages, done = ask(run)
    assert done["at"] == run.events.stat().st_size - len(b'{"event": "unfinished')
    assert [bucket[0] for bucket in messages[0]["curves"][0]["buckets"]] == [1.7e9, 1.7e9 + 1]


def test_curves_of_very_many_metrics_are_sent_in_several_messages(
    run: RunPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(operation, "BATCH_BUCKETS", 1000)
    names = [f"metric {number}" for number in range(250)]
    run.events.write_bytes(
        b"".join(line("trainer", 6, t=1.7e9 + t, event="log", values=dict.fromkeys(names, 1)) for t in range(30))
    )
    messages, done = ask(run)
    assert done["left"] == {"trainer6": 50}
    assert [len(message["curves"]) for message in messages] == [33] * 6 + [2]


def test_a_job_that_was_never_started_has_no_curves(run: RunPaths) -> None:
    run.spec.unlink()
    messages, done = ask(run)
    assert (messages, done["run"], done["at"]) == ([], None, 0)
    with pytest.raises(AgentError, match="there is no job"):
        ask(run, ref="JOB20261121-999999")
