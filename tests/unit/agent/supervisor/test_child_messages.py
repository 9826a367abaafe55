"""What a supervisor keeps of its processes' messages."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

from clusterctl.agent.event_loop import EventLoop
from clusterctl.agent.supervisor.checkpoints import CheckpointKeeper
from clusterctl.agent.supervisor.child import Child
from clusterctl.agent.supervisor.child_messages import ChildMessages
from clusterctl.agent.supervisor.exits import ExitClassifier
from unit.agent.specs import make_context, make_process

WAIT = {"awaits": [1], "awaited": 1, "waiting": 3, "awaits_s": 4.0}


class Receiver:
    """A process, and the messages to the lead that it causes."""

    def __init__(self, role: str, *, has_port: bool = False, **spec: Any) -> None:
        self.sent: list[dict[str, Any]] = []
        self.recorded: list[dict[str, Any]] = []
        context = make_context(send=self.sent.append, record=lambda event, child: self.recorded.append(event), **spec)
        ignored: Any = SimpleNamespace(receive=lambda *_: None, running=lambda *_: None)
        self.child = Child(make_process(role, 0), EventLoop(), lambda *_: None, lambda *_: None)
        launcher: Any = SimpleNamespace(running=lambda *_: None, has_port=lambda _: has_port)
        keeper, classifier = CheckpointKeeper(context), ExitClassifier(context)
        self._messages = ChildMessages(context, launcher, keeper, classifier, ignored)

    def takes(self, event: str, **facts: Any) -> dict[str, Any]:
        """Return what is known of the process after a message."""
        self._messages.receive(self.child, {"event": event, **facts})
        return self.child.progress

    def worked(self, lived_s: float) -> bool:
        """Return True if the process counts as one that did something, when it ends after so many seconds."""
        self.child.state, self.child.exit_code, self.child.started_t = "stopped", 0, time.time() - lived_s
        self._messages.exited(self.child)
        return bool(self.sent[-1]["worked"])

    def fails(self, *lines: str) -> dict[str, Any]:
        """Return what the lead hears when it exits with code 1 after these last lines."""
        self.child.exit_code, self.child._tail = 1, "\n".join(lines).encode()
        self._messages.exited(self.child)
        return self.sent[-1]


def test_only_a_program_that_got_a_port_from_us_gets_another_if_it_is_taken() -> None:
    line = "OSError: [Errno 98] Address already in use"
    assert Receiver("pserver", has_port=True).fails(line)["port_taken"]
    assert "port_taken" not in Receiver("pserver", has_port=True).fails("KeyError: 'age'")
    assert "port_taken" not in Receiver("trainer", has_port=False).fails(line)


def test_a_process_that_ran_for_a_minute_has_worked_even_if_it_never_sent_a_message() -> None:
    assert [Receiver("pserver").worked(lived_s) for lived_s in (1.0, 59.0, 61.0)] == [False, False, True]


def test_a_wait_is_known_only_until_the_next_step_message() -> None:
    pserver = Receiver("pserver")
    assert pserver.takes("step", lost=0, **WAIT) == {"lost": 0, **WAIT}
    assert pserver.takes("log", level="warning", message="m") == {"lost": 0, **WAIT}
    assert pserver.takes("step", apply_s=0.5) == {"lost": 0, "apply_s": 0.5}


def test_only_pservers_report_on_cuts() -> None:
    for role, sent in (("trainer", []), ("pserver", ["due"])):
        receiver = Receiver(role)
        receiver.takes("cut", phase="due", purpose=1)
        assert [report["phase"] for report in receiver.sent] == sent


def test_the_exception_that_ends_a_process_is_known_by_its_class() -> None:
    for sent, known in (("KeyError", "KeyError"), ("x" * 1000, "x" * 200), (None, "None")):
        receiver = Receiver("trainer")
        receiver.takes("uncaught", kind=sent)
        assert receiver.child.uncaught == known


def test_a_warning_of_a_process_goes_to_a_lead_that_takes_it() -> None:
    receiver = Receiver("trainer", takes_warnings=True)
    receiver.takes("warning", kind="lag", message="copies lag behind", rank=7)
    assert receiver.sent == [{"do": "warning", "kind": "lag", "message": "copies lag behind"}]


def test_under_an_older_lead_a_warning_is_recorded_on_the_node() -> None:
    receiver = Receiver("trainer")
    receiver.takes("warning", kind="lag", message="copies lag behind")
    assert receiver.sent == []
    assert [event["message"] for event in receiver.recorded] == ["copies lag behind"]
