"""One process of a run, as its supervisor sees it."""

from __future__ import annotations

import errno
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

from clusterctl.agent.event_loop import EventLoop
from clusterctl.agent.supervisor.child import Child
from clusterctl.agent.supervisor.exits import system_error
from clusterctl.common.procfs import cpu_and_memory
from clusterctl.common.run_spec import ProcessSpec
from support.processes import wait_until

CHATTERS = """
import os, socket
line = b'{"event": "chatter"}\\n' * 1000
control = socket.socket(fileno=int(os.environ["CONTROL"]))
while True:
    control.sendall(line)
"""


def test_a_process_that_never_stops_sending_does_not_block_its_supervisor(tmp_path: Path) -> None:
    loop, messages = EventLoop(), list[dict[str, Any]]()
    plan = ProcessSpec(role="trainer", rank=0, index=0, argv=(sys.executable, "-S", "-c", CHATTERS))
    child = Child(plan, loop, lambda child, message: messages.append(message), lambda child, exc: None)
    child.start(tmp_path, tmp_path, lambda fd: {**os.environ, "CONTROL": fd}, 0.0)
    assert child.pid is not None
    patience = threading.Timer(60, os.kill, (child.pid, signal.SIGKILL))
    patience.start()

    def look() -> None:
        if len(messages) > 1000 or child.poll():
            loop.stop()
        else:
            loop.after(0.01, look)

    look()
    try:
        loop.run()
        assert not child.poll(), "it had to be killed"
    finally:
        patience.cancel()
        child.signal(signal.SIGKILL)
        assert child._popen is not None
        child._popen.wait()
        child.poll()
        child.close()


def test_last_lines_mark_those_that_the_program_did_not_write(tmp_path: Path) -> None:
    plan = ProcessSpec(role="trainer", rank=0, index=0, argv=("true",))
    child = Child(plan, EventLoop(), lambda child, message: None, lambda child, exc: None)
    for line in ("of the program", "pass 3: done"):
        child._keep(f"{line}\n".encode())
    child.printed("pass 3: done")
    child.remark("stalled")
    assert child.last_lines() == {"tail": ["of the program", "pass 3: done", "clusterctl: stalled"], "ours": [1, 2]}


def test_the_errno_of_an_error_is_reported_if_it_is_a_system_error() -> None:
    assert system_error(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))) == {"errno": "ENOSPC"}
    for other in (OSError(errno.EPERM, "OPEN_FILES is too much"), OSError("no address"), ValueError("x"), None):
        assert system_error(other) == {"errno": None}


def test_a_process_has_a_usage_event_every_ten_seconds_from_its_start_on(tmp_path: Path) -> None:
    plan = ProcessSpec(role="trainer", rank=0, index=0, argv=(sys.executable, "-S", "-c", "while True: pass"))
    child = Child(plan, EventLoop(lambda: 5.0), lambda child, message: None, lambda child, exc: None)
    assert child.usage_event(0.0) is None, "it was not started"
    child.start(tmp_path, tmp_path, lambda fd: dict(os.environ), 0.0)
    try:
        assert [child.usage_event(now) for now in (5.0, 6.0, 14.9)] == [None] * 3
        assert child.pid is not None
        assert wait_until(lambda: (cpu_and_memory(child.pid or 0) or (0, 0))[0] >= 0.1)
        event = child.usage_event(15.0)
        assert event is not None
        assert event["event"] == "usage"
        assert 0.01 <= event["cpu"] < 2.0, "seconds of CPU, divided by the ten seconds of this clock"
        assert event["memory"] > 1 << 20
        assert child.usage_event(24.9) is None
        assert child.usage_event(25.0) is not None
    finally:
        child.signal(signal.SIGKILL)
        assert child._popen is not None
        child._popen.wait()
        child.poll()
        child.close()
    assert child.usage_event(40.0) is None, "it has ended"
