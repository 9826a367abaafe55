"""The check of the reports of supervisors to the lead: the shape of each message, and the processes it is about.

Nodes are identified by their keys, but not trusted: without the check, a malformed message would end the lead's
supervisor, and with it the run, and nothing would show which node sent it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Callable

from clusterctl.agent.lead.messages import (
    ExitReport,
    FailureReport,
    HelloReport,
    IdleReport,
    KeysReport,
    PaceReport,
    ReadyReport,
    RejoinReport,
    Report,
    RunningReport,
    StateLostReport,
    StopWantedReport,
    WarningReport,
)
from clusterctl.agent.lead.process_table import name_of
from clusterctl.agent.lead.restart_policy import Key
from clusterctl.agent.lead.saving.messages import CopiedReport, CutReport, LoggedReport, SavedReport
from clusterctl.common.engines import MEETING_HOST, RENDEZVOUS
from clusterctl.common.manifest import check_receipt, check_state_receipt
from clusterctl.common.schema import Reader, SchemaError, readers, required_keys

#: All reports that a node may send. Only the lead's own supervisor sends `kept`, `written` and `save_wanted`.
REPORTS: Mapping[str, Callable[..., Report]] = {
    "hello": HelloReport,
    "keys": KeysReport,
    "ready": ReadyReport,
    "running": RunningReport,
    "exited": ExitReport,
    "failed": FailureReport,
    "stop_wanted": StopWantedReport,
    "rejoin": RejoinReport,
    "idle": IdleReport,
    "saved": SavedReport,
    "copied": CopiedReport,
    "logged": LoggedReport,
    "cut": CutReport,
    "pace": PaceReport,
    "state_lost": StateLostReport,
    "warning": WarningReport,
}
NEEDED = {do: required_keys(kind) - {"do"} for do, kind in REPORTS.items()}
READERS = {do: readers(kind) for do, kind in REPORTS.items()}
#: What a pserver's report about a cut has, by its phase.
CUT_NEEDS = {
    "due": {"purpose"},
    "held": {"cut", "counts", "step", "passes"},
    "made": {"cut", "table_sums"},
    "failed": {"cut"},
    "announced": {"cut", "step"},
}
#: A field has its type in every report, also in one that does not declare it; the first declaration counts there.
FIELDS = {name: read for fields in reversed(list(READERS.values())) for name, read in fields.items()}


def check(message: Mapping[str, Any], node: int, processes: Collection[Key]) -> Report:
    """Return a message of the supervisor of `node`, which has these processes.

    Raises ValueError for a message that our supervisors never send.
    """
    do = message.get("do")
    if not isinstance(do, str) or do not in REPORTS:
        raise ValueError(f"unknown message {do!r:.40}")
    needed = {*NEEDED[do]}
    if "role" in message or "attempt" in message:
        needed |= {"role", "rank"}
    if message.get("pace") == "waits":
        needed |= {"for_s", "message"}
    if do == "cut":
        needed |= CUT_NEEDS.get(str(message.get("phase")), set())
    if missing := sorted(needed - message.keys()):
        raise ValueError(f"{do!r} without {missing[0]}")
    for name, read in {**FIELDS, **READERS[do]}.items():
        if name in message:
            _check_field(do, name, read, message[name])
    _check_processes(message, processes)
    return REPORTS[do]({**message, **_receipt(message, node)} if do == "saved" else message)


def _check_field(do: str, name: str, read: Reader, value: Any) -> None:
    try:
        read(value)
    except SchemaError as exc:
        raise ValueError(f"{do!r} with an invalid {name}: {exc!s:.80}") from None


def _check_processes(message: Mapping[str, Any], processes: Collection[Key]) -> None:
    """Raise ValueError if a supervisor reports on processes other than its own."""
    own = {name_of(key) for key in processes}
    ports = {RENDEZVOUS} if MEETING_HOST in own else set()
    named = {*message.get("endpoints", ())} - ports | {*message.get("attempts", ()), *message.get("keys", ())}
    if "rank" in message:
        named.add(name_of((message.get("role", "trainer"), message["rank"])))
    if not named <= own:
        raise ValueError(f"{message['do']!r} about {min(named - own)!r:.40}, which is not a process of this node")


def _receipt(message: Mapping[str, Any], node: int) -> dict[str, Any]:
    try:
        checked = check_state_receipt if message["role"] == "trainer" else check_receipt
        return {**checked(message, message["rank"]), "node": node}
    except (AttributeError, KeyError, TypeError) as exc:
        raise ValueError(f"malformed receipt: {exc!r:.80}") from None
