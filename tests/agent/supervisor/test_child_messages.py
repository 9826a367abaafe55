"""What a supervisor keeps of its processes' messages."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from agent.specs import make_context, make_process
from clusterctl.agent.event_loop import EventLoop
from clusterctl.agent.supervisor.checkpoints import CheckpointKeeper
from clusterctl.agent.supervisor.child import Child
from clusterctl.agent.supervisor.child_messages import ChildMessages

WAIT = {"awaits": [1], "awaited": 1, "waiting": 3, "awaits_s": 4.0}


class Receiver:
    """A process, and the messages to the lead that it causes."""

    def __init__(self, role: str, **spec: Any) -> None:
        self.sent: list[dict[str, Any]] = []
        self.recorded: list[dict[str, Any]] = []
        context = make_context(send=self.sent.append, record=lambda event, child: self.recorded.append(event), **spec)
        ignored: Any = SimpleNamespace(receive=lambda *_: None, running=lambda *_: None)
        self.child = Child(make_process(role, 0), EventLoop(), lambda *_: None, lambda *_: None)
        self._messages = ChildMessages(context, ignored, CheckpointKeeper(context), ignored, ignored)

    def takes(self, event: str, **facts: Any) -> dict[str, Any]:
        """Return what is known of the process after a message."""
        self._messages.receive(self.child, {"event": event, **facts})
        return self.child.progress


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
