"""Preflight of this node, and of its ways to the others, in one SSH command.

Facts go up first. Then this node listens on the job's ports until the control machine, which has heard all nodes, says
whom to try, and, when all have tried, that it is over.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from clusterctl.agent.node import facts, ports
from clusterctl.agent.node.addresses import find_address, interface_of
from clusterctl.agent.node.ports import take_as_a_job
from clusterctl.agent.node.reachability import Target, answering, try_all
from clusterctl.agent.packages.interpreter import probe
from clusterctl.agent.packages.venvs import find_for_job, find_newest
from clusterctl.agent.peer import Peer
from clusterctl.common.errors import AgentError, describe_os_error
from clusterctl.common.paths import find_jobs

OTHERS_S = 300.0  # until every node has told its facts, or has tried


def check(root: Path, request: dict[str, Any], peer: Peer) -> dict[str, Any]:
    """`request`: python, runtime, address, nic, and port, count (of ports to be free), lead, for what will listen."""
    problems: list[dict[str, Any]] = []
    with _noted(problems, "root"):
        facts.try_to_write(root)
    found: dict[str, Any] = {"problems": problems, "versions": {}, "address": None, "interface": None}
    with _noted(problems, "python"):
        python = _python(root, request)
        found["versions"] = probe(root, python, runtime=False)  # is told also where the next one fails
        found["versions"] = probe(root, python, runtime=request["runtime"])
    with _noted(problems, "address"):
        found["address"] = find_address(request["address"], request["nic"])
        found["interface"] = interface_of(found["address"])
    listeners: list[socket.socket] = []
    busy: list[int] = []
    if found["address"] is not None:
        with _noted(problems, "ports"):
            listeners, busy = take_as_a_job(found["address"], request["port"], request["count"], lead=request["lead"])
    with answering(listeners) as listening:
        found.update(_look_around(root), listening=listening, busy=ports.holders(busy))
        peer.send({"facts": found})
        targets = [Target(*target) for target in peer.receive(OTHERS_S)["targets"]]
        peer.send({"clock": time.time()})
        peer.send({"reach": try_all(targets)})
        peer.receive(OTHERS_S)
    return {}


def _look_around(root: Path) -> dict[str, Any]:
    return {
        **facts.quick(root),
        "cores": len(os.sched_getaffinity(0)),
        "memory": facts.memory(),
        "leftovers": facts.leftovers(root),
        "half_dispatched": facts.half_dispatched(root),
    }


def _python(root: Path, request: dict[str, Any]) -> str:
    """What the newest job would run by: its environment of `setup`, else PYTHON. Without a job, the next one's."""
    newest = next(find_jobs(root), None)
    venv = find_for_job(root, newest.dir, request["runtime"]) if newest else find_newest(root)
    return str(venv / "bin/python") if venv else str(request["python"])


@contextlib.contextmanager
def _noted(problems: list[dict[str, Any]], what: str) -> Iterator[None]:
    """A failure within is one more problem, and the other checks go on."""
    try:
        yield
    except AgentError as exc:
        problems.append({"check": what, "message": str(exc), "hint": exc.hint})
    except OSError as exc:
        error = describe_os_error(exc, "cannot write to ROOT_DIR") if what == "root" else AgentError(str(exc))
        problems.append({"check": what, "message": str(error), "hint": error.hint})
