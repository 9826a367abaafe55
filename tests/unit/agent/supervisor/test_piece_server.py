"""The supervisor's side of a piece server: each order ends in a report, whatever the process answers."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from clusterctl.agent.event_loop import EventLoop
from clusterctl.agent.lead.saving.messages import MergeModelOrder
from clusterctl.agent.supervisor import piece_server
from clusterctl.agent.supervisor.piece_server import PieceServerProcess
from unit.agent.specs import make_context
from unit.agent.wires import run_until

ORDER: MergeModelOrder = {"do": "merge", "tag": "pass-00001", "python": "python3", "limit_mb": 1, "sources": {}}
PROGRAM = """
import socket, sys
control = socket.socket(fileno=int(sys.argv[-1]))
for order in control.makefile():
    control.sendall({answer!r} + b"\\n")
"""


def report_after(answer: bytes, directory: Path, loop: EventLoop, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Return the report about an order that a piece server answers like this."""
    program = directory / "entry.py"
    program.write_text(PROGRAM.format(answer=answer))
    monkeypatch.setattr(piece_server, "ENTRY", str(program))
    sent: list[dict[str, Any]] = []
    server = PieceServerProcess(make_context(loop=loop, send=sent.append))
    server.carry_out(ORDER)

    def is_reported() -> bool:
        server.poll()
        return bool(sent)

    try:
        run_until(loop, is_reported)
    finally:
        server.close()
    [report] = sent
    return report


@pytest.mark.parametrize(
    ("answer", "more"),
    [({"error": None, "bytes": 5}, {"bytes": 5}), ({"error": "no room"}, {"bytes": 0, "message": "no room"})],
)
def test_an_answer_becomes_a_report(
    answer: dict[str, Any], more: dict[str, Any], tmp_path: Path, loop: EventLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = report_after(json.dumps(answer).encode(), tmp_path, loop, monkeypatch)
    assert report == {"do": "copied", "tag": "pass-00001", "of": "merge", **more}


@pytest.mark.parametrize("answer", [b"x", b'{"error": null, "bytes": -1}'])
def test_a_process_that_answers_nonsense_is_ended_and_its_order_has_failed(
    answer: bytes, tmp_path: Path, loop: EventLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert report_after(answer, tmp_path, loop, monkeypatch)["message"] == "the piece server ended unexpectedly"


def test_an_order_for_a_process_that_has_died_goes_to_another_one(
    tmp_path: Path, loop: EventLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "entry.py"
    program.write_text("")
    monkeypatch.setattr(piece_server, "ENTRY", str(program))
    sent: list[dict[str, Any]] = []
    server = PieceServerProcess(make_context(loop=loop, send=sent.append))
    try:
        server.carry_out(ORDER)
        assert server.pid is not None
        os.waitid(os.P_PID, server.pid, os.WEXITED | os.WNOWAIT)
        server.carry_out({**ORDER, "tag": "pass-00002"})
        program.write_text(PROGRAM.format(answer=b'{"error": null}'))
        server.poll()
        run_until(loop, lambda: len(sent) == 2)
    finally:
        server.close()
    assert [(report["tag"], report.get("message")) for report in sent] == [("pass-00001", None), ("pass-00002", None)]
