"""Preflight of this node and of its connections to the others, in one SSH command.

The node sends its facts first. Then it listens on the job's ports. When the control machine has the facts of all nodes,
it sends the list of targets to probe; when all nodes have finished, it ends the operation.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from clusterctl.agent.gpus.usage import inspect_gpus
from clusterctl.agent.node import facts, ports
from clusterctl.agent.node.addresses import find_address, interface_of
from clusterctl.agent.node.ports import take_as_a_job
from clusterctl.agent.node.reachability import ProbeTarget, answering, try_all
from clusterctl.agent.packages.interpreter import measure_shim, probe
from clusterctl.agent.packages.venvs import find_for_job, find_newest
from clusterctl.agent.peer import Peer
from clusterctl.common.errors import AgentError, describe_os_error
from clusterctl.common.paths import find_jobs
from clusterctl.common.requests import CheckRequest


def check(root: Path, request: CheckRequest, peer: Peer) -> dict[str, Any]:
    problems: list[dict[str, Any]] = []
    with _recorded(problems, "root"):
        facts.try_to_write(root)
    report: dict[str, Any] = {"problems": problems, "versions": {}, "address": None, "interface": None}
    with _recorded(problems, "python"):
        python = _python(root, request)
        report["versions"] = probe(root, python, runtime=False)  # reported even if the next one fails
        report["versions"] = probe(root, python, runtime=request["runtime"])
    report["shim"] = measure_shim(str(request["python"]))
    with _recorded(problems, "address"):
        report["address"] = find_address(request["address"], request["nic"])
        report["interface"] = interface_of(report["address"])
    listeners: list[socket.socket] = []
    busy: list[int] = []
    if report["address"] is not None:
        with _recorded(problems, "ports"):
            listeners, busy = take_as_a_job(report["address"], request["port"], request["count"], lead=request["lead"])
    report["gpus"] = inspect_gpus(request["gpus"])
    with answering(listeners) as listening:
        report.update(_more_facts(root), listening=listening, busy=ports.holders(busy))
        peer.send({"facts": report})
        targets = [ProbeTarget(*target) for target in peer.receive()["targets"]]
        peer.send({"clock": time.time()})
        peer.send({"reach": try_all(targets)})
        peer.receive()
    return {}


def _more_facts(root: Path) -> dict[str, Any]:
    return {
        **facts.quick(root),
        "cores": len(os.sched_getaffinity(0)),
        "memory": facts.memory(),
        "leftovers": facts.leftovers(root),
        "half_dispatched": facts.half_dispatched(root),
    }


def _python(root: Path, request: CheckRequest) -> str:
    """Return the Python of the newest job, else of the next one: that of its environment from `setup`, else PYTHON."""
    newest = next(find_jobs(root), None)
    venv = find_for_job(root, newest.dir, request["runtime"]) if newest else find_newest(root)
    return str(venv / "bin/python") if venv else request["python"]


@contextlib.contextmanager
def _recorded(problems: list[dict[str, Any]], check: str) -> Iterator[None]:
    """Record a failure within the context as a problem, and continue with the other checks."""
    try:
        yield
    except AgentError as exc:
        problems.append({"check": check, "message": str(exc), "hint": exc.hint})
    except OSError as exc:
        error = describe_os_error(exc, "cannot write to ROOT_DIR") if check == "root" else AgentError(str(exc))
        problems.append({"check": check, "message": str(error), "hint": error.hint})
