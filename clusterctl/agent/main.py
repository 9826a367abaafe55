"""The agent: one command, a request and its answer, then others if the control machine has any."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import traceback
from importlib import import_module
from pathlib import Path
from typing import Any, Callable

from clusterctl.agent.peer import SILENCE_S, Peer, standard_peer
from clusterctl.common.errors import AgentError, Gone, describe_os_error
from clusterctl.common.procfs import adopt_orphans
from clusterctl.common.requests import read_request
from clusterctl.common.safe_json import loads

#: The module and the function of each operation; a call loads only the one it needs.
OPERATIONS = {
    "dispatch": ("dispatch.receive", "receive"),
    "adopt": ("dispatch.adopt", "adopt"),
    "stop": ("operations.stop", "stop"),
    "exec": ("operations.exec", "exec_"),
    "status": ("operations.status", "status"),
    "jobs": ("operations.status", "jobs"),
    "start": ("operations.start", "start"),
    "rejoin": ("operations.start", "rejoin"),
    "check": ("operations.preflight", "check"),
    "setup": ("operations.setup", "setup"),
    "logs": ("operations.logs", "logs"),
    "follow": ("operations.logs", "follow"),
    "events": ("operations.logs", "events"),
    "diagnose": ("operations.diagnose", "diagnose"),
    "curves": ("operations.curves", "curves"),
    "contents": ("operations.contents", "contents"),
    "collect": ("operations.collect", "collect"),
    "prune": ("operations.prune", "prune"),
    "find_checkpoints": ("operations.checkpoints", "find"),
    "find_named": ("operations.names", "find_named"),
    "find_models": ("operations.checkpoints", "find_models"),
    "save": ("operations.save", "save"),
    "verify_checkpoint": ("operations.checkpoints", "verify"),
}
SHORT = ("status", "jobs")  # they end before garbage would matter
LEAVE_CHILDREN = ("start", "rejoin")
LAST = (*LEAVE_CHILDREN, "prune")  # after these the agent serves no more: they leave child processes, or remove agents


def main(root: str, request: bytes, umask: int) -> int:
    """Serve a request; the rest of it may be on standard input. `root` is ROOT_DIR, absolute.

    Serve further requests until the control machine closes the connection, if it wants this agent to stay. `umask` is
    the account's own. Return the exit code.
    """
    peer = standard_peer()
    home = Path(__file__).stat()
    code = 0
    try:
        message: dict[str, Any] | None = read_request(loads(request))
        while message is not None:
            peer.silence_s = message.get("silence_s", SILENCE_S)
            answer = _answer(Path(root), {**message, "umask": umask}, peer)
            stays = message.get("stay", False) and message["op"] not in LAST
            holds = message.get("hold", False) and message["op"] in LEAVE_CHILDREN
            peer.send({"done": answer, **({"stays": True} if stays else {"holds": True} if holds else {})})
            if holds:
                hold(answer.get("pid"))
            message = _next_request(peer, home) if stays else None
    except Gone as gone:
        code = 1
        _note(str(gone))
    except Exception as exc:  # noqa: BLE001 - any error is reported to the control machine
        code = 1
        _report(peer, exc)
    return code


def _next_request(peer: Peer, home: os.stat_result) -> dict[str, Any] | None:
    """Return the next request; None if the control machine leaves, or if this agent is no longer the installed one.

    `home` is the status of this file when the agent began.
    """
    gc.collect(0)  # `status` may be asked for days, and turns it off
    try:
        while "op" not in (message := peer.receive()):
            pass  # meant for the last operation, which had just ended
        if not os.path.samestat(Path(__file__).stat(), home):
            return None
    except (Gone, OSError):
        return None
    peer.send({"again": True})
    return read_request(message)


def _note(words: str) -> None:
    """Leave words for a control machine that only seemed to have gone: it may have been suspended."""
    try:
        os.write(2, words.encode())
    except OSError:
        return


def _report(peer: Peer, exc: Exception) -> None:
    if isinstance(exc, OSError):
        exc = describe_os_error(exc, "the agent could not continue")
    if not isinstance(exc, AgentError):
        exc = AgentError(f"the agent failed: {exc!r}", traceback=traceback.format_exc())
    try:
        peer.send({"error": exc.to_json()})
    except Gone:
        return


def _answer(root: Path, request: dict[str, Any], peer: Peer) -> dict[str, Any]:
    if (root / ".clusterctl/journal").exists():  # it is rarely there, and this check is cheap
        from clusterctl.agent.dispatch.in_place import recover

        recover(root)
    gc.disable()  # a collection frees nothing in so short a process, and takes 0.5 ms of `status` with 1,000 nodes
    module, name = OPERATIONS[request["op"]]
    operation: Callable[..., dict[str, Any]] = getattr(import_module(f"clusterctl.agent.{module}"), name)
    if request["op"] not in SHORT:
        gc.freeze()  # modules are no garbage, and searching them for any would take 3 ms
        gc.enable()  # `follow` may run for days
    return operation(root, request, peer)


def hold(supervisor: int | None) -> None:
    """Return once no process is left that this one or its descendants have started.

    On TERM, by which the scheduler announces the end of its patience, the run of the supervisor with that pid stops.
    """

    signals = {signal.SIGCHLD, signal.SIGTERM}
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)  # a handler misses one that comes just before a wait
    adopt_orphans()
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):  # they lead to a control machine that does not listen any more
        os.dup2(nowhere, stream)
    has_ended = False
    with contextlib.suppress(ChildProcessError):
        while True:
            ended, _ = os.waitpid(-1, os.WNOHANG)
            has_ended |= ended == supervisor
            if not ended and signal.sigwait(signals) == signal.SIGTERM and supervisor is not None and not has_ended:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(supervisor, signal.SIGTERM)
