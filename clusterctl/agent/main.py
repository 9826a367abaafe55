"""The agent: one command, a request and its answer, then others if the control machine has any."""

from __future__ import annotations

import gc
import os
import traceback
from importlib import import_module
from pathlib import Path
from typing import Any, Callable

from clusterctl.agent.peer import SILENCE_S, Peer, standard_peer
from clusterctl.common.errors import AgentError, Gone, describe_os_error
from clusterctl.common.safe_json import loads

OPERATIONS = {
    "start": ("start", "start"),
    "rejoin": ("start", "rejoin"),
    "check": ("preflight", "check"),
    "setup": ("setup", "setup"),
    "logs": ("logs", "logs"),
    "follow": ("logs", "follow"),
    "events": ("logs", "events"),
    "diagnose": ("diagnose", "diagnose"),
    "curves": ("curves", "curves"),
    "contents": ("contents", "contents"),
    "collect": ("collect", "collect"),
    "prune": ("prune", "prune"),
    "find_checkpoints": ("checkpoints", "find"),
    "find_named": ("names", "find_named"),
    "find_models": ("checkpoints", "find_models"),
    "save": ("save", "save"),
    "verify_checkpoint": ("checkpoints", "verify"),
}
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
        message: dict[str, Any] | None = loads(request)
        while message is not None:
            peer.silence_s = message.get("silence_s", SILENCE_S)
            answer = _answer(root, {**message, "umask": umask}, peer)
            stays = bool(message.get("stay")) and message["op"] not in LAST
            holds = bool(message.get("hold")) and message["op"] in LEAVE_CHILDREN
            peer.send({"done": answer, **({"stays": True} if stays else {"holds": True} if holds else {})})
            if holds:
                from clusterctl.agent.step import hold

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
    return message


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


def _answer(root: str, request: dict[str, Any], peer: Peer) -> dict[str, Any]:
    operation = request["op"]
    path = Path(root)
    if (path / ".clusterctl/journal").exists():  # it is rarely there, and this check is cheap
        from clusterctl.agent.dispatch.in_place import recover

        recover(path)
    gc.disable()  # a collection frees nothing in so short a process, and takes 0.5 ms of `status` with 1,000 nodes
    if operation == "dispatch":
        from clusterctl.agent.dispatch.receive import receive

        return receive(path, request, peer)
    if operation == "adopt":
        from clusterctl.agent.dispatch.adopt import adopt

        return adopt(path, request, peer)
    if operation == "stop":
        from clusterctl.agent.operations.stop import stop

        return stop(path, request, peer)
    if operation == "exec":
        from clusterctl.agent.operations.exec import exec_

        return exec_(request, peer)
    if operation in OPERATIONS:
        module, name = OPERATIONS[operation]
        function: Callable[..., dict[str, Any]] = getattr(import_module(f"clusterctl.agent.operations.{module}"), name)
        gc.freeze()  # modules are no garbage, and searching them for any would take 3 ms
        gc.enable()  # `follow` may run for days
        return function(path, request, peer)
    return _about_jobs(path, request)


def _about_jobs(root: Path, request: dict[str, Any]) -> dict[str, Any]:
    from clusterctl.agent.node import jobs

    if request["op"] == "status":
        from clusterctl.agent.node.job_choice import choose_job

        job, ran = choose_job(root, request["ref"])
        over, gpus = bool(request.get("over")), bool(request.get("gpus"))
        return {**jobs.describe(job, request.get("run"), over=over, gpus=gpus), "ran": ran}
    if request["op"] == "jobs":
        return {"jobs": jobs.list_jobs(root, over=bool(request.get("over")))}
    raise AgentError(f"the agent does not know {request['op']!r}", kind="usage")
