"""Report how a run ended on this node: its events, the last output of failed processes, and its present state.

First come clock readings: each `{"now": ...}` is answered with this node's time, until another message comes.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from clusterctl.agent.node.jobs import find_job, pick_run, read_state, supervisor_of
from clusterctl.agent.node.log_files import EventReader, LogReader
from clusterctl.agent.node.runs import describe_dispatched, describe_run, need_spec
from clusterctl.agent.peer import Peer
from clusterctl.agent.supervisor.child import REMARK
from clusterctl.common.files import read_json
from clusterctl.common.paths import RunPaths, expand_program, log_stem
from clusterctl.common.procfs import PROC, boot_id, is_alive, stat_fields
from clusterctl.common.requests import DiagnoseRequest
from clusterctl.common.requirements import file_of, names_in
from clusterctl.common.run_spec import RunSpec

MANY = 4000  # events; of more, only the first and the last are sent
LINES = 200
LINE_CHARS = 2000
OUTPUTS = 3  # of the attempts of one process
PROBE_S = 10.0
TRACEBACK = "Traceback (most recent call last):"
FREQUENT = ("step", "pass", "usage")
PRINTING = ("pass", "saved")  # events whose processes print a line about it
QUIET = ("running", "starting", "succeeded")


def diagnose(root: Path, request: DiagnoseRequest, peer: Peer) -> dict[str, Any]:
    """Report on the requested run, else on the newest; with `spec`, also its spec and the versions of its packages.

    `over`: as for `run_state`. Then this machine's boots and programs are not those of the run.
    """
    over = request.get("over", False)
    while "now" in peer.receive():
        peer.send({"now": time.time()})
    job = find_job(root, request["ref"])
    run = pick_run(job, request.get("run"))
    if run is None or not run.spec.is_file():
        return {**describe_dispatched(job), "events": [], "outputs": []}
    spec = need_spec(run)
    about = describe_run(run, spec, over=over)
    printed = PrintedLines()
    events = list(_relevant(EventReader(run.events), printed))
    state, reason = read_state(run), read_json(run.stop_reason)
    return {
        **about,
        "events": events if len(events) <= MANY else [*events[: MANY // 2], *events[-MANY // 2 :]],
        "outputs": list(_outputs(run, spec, events, about, printed)),
        "seen": state.get("t"),
        "booted": None if over else _booted_since(state),
        "halted": not over and _is_halted(state),
        "stop_asked": run.stop_asked.exists(),
        "start_failed": bool(reason) and not reason.get("by_user"),
        **_free(job.dir),
        "python": None if over or about["state"] in QUIET else _python(spec),
        "requirements": names_in(job.dir),
        "requirements_file": file_of(job.dir),
        "environment": Path(spec.venv).name if spec.venv else None,
        **({"spec": spec.to_json(), "versions": dict(spec.versions or {})} if request.get("spec") else {}),
    }


class PrintedLines:
    """The lines that clusterctl wrote into the logs of processes, as their events report them."""

    def __init__(self) -> None:
        self._lines: dict[tuple[Any, ...], set[str]] = {}

    def take(self, event: dict[str, Any]) -> None:
        line = event.get("line")
        if event.get("event") in PRINTING and "role" in event and isinstance(line, str):
            self._lines.setdefault((event["role"], event.get("rank")), set()).add(line)

    def ours(self, role: str, rank: int, lines: Sequence[Sequence[Any]]) -> list[int]:
        """Return the indexes of such lines among (time, line) of a process."""
        printed = self._lines.get((role, rank), ())
        return [at for at, (_, line) in enumerate(lines) if line in printed or line.startswith(REMARK)]


def _relevant(reader: EventReader, printed: PrintedLines) -> Iterator[dict[str, Any]]:
    """Yield the events, but of the frequent kinds only the first and the last one of each attempt."""
    first: set[tuple[Any, ...]] = set()
    last: dict[tuple[Any, ...], dict[str, Any]] = {}
    while events := reader.read():
        for event in events:
            printed.take(event)
            if event.get("event") in FREQUENT or "values" in event:
                key = (event["event"], event.get("role"), event.get("rank"), event.get("attempt"))
                if key in first:
                    last[key] = event
                    continue
                first.add(key)
            yield event
    yield from last.values()


def _outputs(
    run: RunPaths, spec: RunSpec, events: Sequence[dict[str, Any]], about: dict[str, Any], printed: PrintedLines
) -> Iterator[dict[str, Any]]:
    """Yield the last lines of failed attempts, of processes that are stalled or lost, and of those that were stopped
    if there is an exception among them.
    """
    plans = {(process.role, process.rank): process for process in spec.processes}
    began: dict[tuple[Any, ...], float] = {}
    stopped = {_attempt(event) for event in events if event.get("event") == "exited" and event.get("stopping")}
    stopped -= {_attempt(event) for event in events if event.get("event") == "stalled"}
    spans: dict[tuple[str, int], dict[int, tuple[float, float]]] = {}  # from and until, by the attempt
    for event in events:
        key = (event.get("role"), event.get("rank"))
        if key not in plans:
            continue
        attempt = int(event.get("attempt") or 1)
        name = event.get("event")
        if name == "spawned":
            began[key[0], key[1], attempt] = event["t"]
        elif name in ("exited", "stalled"):
            until = event["t"] + (0.2 if name == "exited" else 5.0)
            spans.setdefault(key, {})[attempt] = (began.get((key[0], key[1], attempt), 0.0), until)
    for process in about["processes"]:
        key = (process["role"], process["rank"])
        if process["state"] in ("lost", "stalled") and key not in spans:
            spans[key] = {process.get("restarts", 0) + 1: (0.0, time.time())}
    for (role, rank), wanted in spans.items():
        stem = log_stem(role, plans[role, rank].index)
        for attempt, (since, until) in [*wanted.items()][-OUTPUTS:]:
            lines = _last_lines(run.log, stem, since, until)
            if (role, rank, attempt) in stopped and not any(TRACEBACK in line for _, line in lines):
                continue
            ours = printed.ours(role, rank, lines)
            yield {"role": role, "rank": rank, "attempt": attempt, "lines": lines, "ours": ours}


def _attempt(event: dict[str, Any]) -> tuple[Any, ...]:
    return event.get("role"), event.get("rank"), int(event.get("attempt") or 1)


def _last_lines(directory: Path, stem: str, since: float, until: float) -> list[list[Any]]:
    reader = LogReader(directory, stem)
    reader.seek_tail(OUTPUTS * LINES)
    lines = [line for line in reader.lines(final=True) if since - 0.1 <= line.t <= until]
    return [[line.t, line.text[:LINE_CHARS].decode(errors="replace")] for line in lines[-LINES:]]


def _booted_since(state: dict[str, Any]) -> float | None:
    """Return the time at which the node booted, if that was after the supervisor started."""
    supervisor = supervisor_of(state)
    if supervisor is None or supervisor.boot == boot_id():
        return None
    lines = (PROC / "stat").read_text().splitlines()
    return next((float(line.split()[1]) for line in lines if line.startswith("btime ")), None)


def _is_halted(state: dict[str, Any]) -> bool:
    """Return True if the supervisor is alive but stopped by a signal."""
    supervisor = supervisor_of(state)
    fields = stat_fields(supervisor.pid) if is_alive(supervisor) and supervisor is not None else None
    return fields is not None and fields[0] in "Tt"


def _free(directory: Path) -> dict[str, int | None]:
    """Return the free bytes and inodes of its disk, None if they are unknown. Some file systems have no inodes."""
    try:
        system = os.statvfs(directory)
    except OSError:
        return {"free_bytes": None, "free_inodes": None}
    inodes = system.f_favail if system.f_files else None
    return {"free_bytes": system.f_bavail * system.f_frsize, "free_inodes": inodes}


def _python(spec: RunSpec) -> str | None:
    """Return the version of the Python that runs the trainers."""
    commands = [process.argv[0] for process in spec.processes if process.role == "trainer"]
    command = expand_program(commands[0]) if commands else ""
    if not Path(command).name.startswith("python"):
        return None
    program = [command, "-c", "import sys; print(sys.version.split()[0])"]
    try:
        done = subprocess.run(program, capture_output=True, text=True, timeout=PROBE_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None
