"""What agents, the control machine and runs accept: the verdicts on samples with one to three random mutations.

`python -m contract.verdicts`, in `tests/`, records them; its diff belongs to the change that wants it.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

from clusterctl.agent.lead.message_schema import check
from clusterctl.cluster.answers import ANSWERS, CurvesAnswer, CurvesEnd, FollowEnd, FoundDevices, GpuReport, news, read
from clusterctl.common.requests import REQUESTS
from clusterctl.common.run_spec import RunSpec, RunSummary
from clusterctl.common.schema import reader
from clusterctl.observe.record.contents import files_in
from clusterctl.observe.record.model import Figures
from support.places import TESTS

SPEC = TESTS / "unit/common/recorded/spec.json"
RECORDED = Path(__file__).parent / "recorded/verdicts.json"
COUNT = 2000
JOB = "JOB20261121-081530"
OWN = [("pserver", 1), ("trainer", 1)]
STRANGE: list[Any] = [
    *(None, True, False, 0, -1, 1 << 70, 1.5, -0.5, 1e12, float("nan"), float("inf"), "", "x", "x" * 1000, "a/b", "\n"),
    *([], [1], ["x"], [[]], {}, {"a": {}}),
]
GPU = {"index": 0, "uuid": "GPU-1", "name": "A100", "total": 1, "used": 0, "utilization": None}
USER = {"gpu": 0, "pid": 1, "name": "python", "account": None, "memory": 5, "job": JOB}
GPUS = {"devices": ["0"], "gpus": [GPU], "users": [USER], "problem": None}
WARNINGS = [{"kind": "no_push", "message": "m"}]
CAUSE = {"kind": "exit", "message": "m", "node": 1, "role": "trainer", "rank": 1, "tail": ["a"]}
MEMBERS = {"run": "0001", "name": "a", "started": 5.5, "members": [0, 1], "left_out": [{"node": 2, "message": "m"}]}
STATUS = {
    **MEMBERS,
    **{"job": JOB, "dir": "/d", "state": "running", "mode": "sync", "phase": "running", "now": 6.0},
    "resumed": {"run": "0001", "step": 5, "job": JOB, "tag": "step-5"},
    "waits_for": ["trainer0"],
    "cut_dropped": {"t": 1.5, "message": "m", "trainers": [0], "saves": ["model"]},
    "warnings": WARNINGS,
    "ran": [{"job": JOB, "t": 1.0, "live": True}],
    "ended": {"t": 9.0, "state": "failed", "cause": CAUSE, "warnings": WARNINGS},
    "processes": [{"role": "trainer", "rank": 1, "state": "running", "pid": 5, "restarts": 0, "exit_code": -9}],
    "gpus": GPUS,
}
RUN = {
    **MEMBERS,
    **{"state": "failed", "warnings": WARNINGS, "arguments": ["a"], "env": {"A": "1"}, "seconds": 5},
    "keep_best": {"name": "auc", "direction": "max"},
    "trainers": [{"loss": 0.5, "metrics": {"auc": [0.5, 0.4, None]}}],
}
RECORD = {"workspace": "w", "content": "c", "files": 1, "bytes": 2, "t": 3.0}
#: A valid value of each declaration.
ANSWERED: Mapping[str, Any] = {
    "status": STATUS,
    "jobs": {"jobs": [{"job": JOB, "runs": [RUN], "record": RECORD}]},
    "find_named": {"job": None, "runs": [{"job": JOB, "run": "0001", "t": 1.0}]},
    "diagnose": {
        **{"job": JOB, "run": "0001", "state": "lost", "started": 1.0, "events": [{"event": "x"}]},
        "outputs": [{"role": "trainer", "rank": 0, "attempt": 1, "lines": [[1.0, "text"]], "ours": [0]}],
        **{"seen": 1.0, "booted": None, "free_bytes": 1, "free_inodes": 1, "python": "3.11", "requirements": ["a"]},
        **{"requirements_file": "uv.lock", "environment": "e", "spec": {}, "versions": {"python": "3"}},
    },
    "save": {"job": JOB, "run": "0001", "tag": "step-5", "step": 5},
    "contents": {"job": JOB, "run": "0001", "digest": "d", "changed": 0, "packages": {"numpy": "1"}},
    "stop": {
        **{**MEMBERS, "job": JOB, "dir": "/d", "was": "running", "killed": 1, "survivors": 0, "leftovers": 0},
        **{"ended": {"state": "stopped", "t": 1.0}, "left": [{"pid": 1, "command": "c"}], "ports_busy": [1]},
        "holders": [{"port": 1, "pid": None, "uid": 0, "name": "n"}],
    },
}
NEWS = {
    **{"run": "0001", "streams": [{"role": "trainer", "rank": 0, "at": 5}], "events": [{"event": "x", "t": 1.0}]},
    **{"at": 5, "lines": [[1.0, 0, "text", 5]], "shown": 1, "held": [[0, 1, 2]]},
}
BUCKET = [1.0, 2.0, None, 5, 2, 2.0, 0.5, 0.6, 0.55, 0.6, 0]
CURVE = {"role": "trainer", "rank": 0, "of": "step", "name": "loss", "undone": False, "buckets": [BUCKET]}
PROCESS = {"role": "trainer", "rank": 1, "attempt": 1}
REPORTED: Mapping[str, Any] = {
    "hello": {"epoch": 0, "endpoints": {"pserver1": "b:7164"}, "pieces": "b:1", "new": False},
    "ready": {**PROCESS, "role": "pserver", "endpoint": "b:7164"},
    "running": PROCESS,
    "exited": {
        **{**PROCESS, "exit_code": 1, "stopping": False, "t": 1.5, "message": "m", "tail": ["a"], "ours": [0]},
        **{"worked": True, "pushes": 5, "pushed": None, "losses": [5, 5], "reason": None, "limit": "x", "oom": True},
        **{"peers": ["pserver0"], "unfinished": None, "uncaught": "KeyError", "hopeless": False, "port_taken": True},
    },
    "failed": {**PROCESS, "message": "m", "errno": "ENOSPC", "command": "c", "path": "/p", "t": 1.0},
    "stop_wanted": {"message": "m", "signal": "SIGTERM"},
    "rejoin": {},
    "idle": {"epoch": 1, "attempts": {"trainer1": 2}, "stopping": False},
    "copied": {"tag": "t", "of": "copy", "bytes": 5, "message": "m"},
    "logged": {"rank": 1, "step": 5, "value": 0.5, "weight": 1},
    "cut": {
        **{**PROCESS, "role": "pserver", "phase": "held", "cut": 1, "purpose": 1, "counts": [1, 2], "step": 5},
        **{"passes": 1, "table_sums": [1], "waits_for": [0]},
    },
    "pace": {**PROCESS, "pace": "waits", "for_s": 1.5, "message": "m", "awaits": ["trainer0"]},
    "state_lost": {**PROCESS, "message": "m"},
    "warning": {"kind": "no_push", "message": "m"},
}
FIGURES: Mapping[str, Any] = {
    **{"pass": 1, "step": 5, "loss": 0.5, "samples_per_s": 10, "memory": 5, "values": {"auc": 0.5}, "started": 5.0},
    **{"staleness": [[0, 5]], "tables": [{"name": "e", "rows": 5}], "awaits": [0, 1], "awaits_s": 1.5, "gpus": ["0"]},
}
OF_RUN = {"ref": JOB, "run": "0001"}
PLACE = {"address": "10.0.0.1", "nic": "eth0"}
PORTS = {"python": "python3", "runtime": True, **PLACE, "port": 7164, "count": 1, "lead": True, "gpus": 8}
LINES = {"role": "trainer", "rank": 0, "since": 1.5, "tail": 5, "grep": "a"}
REQUESTED: Mapping[str, Any] = {
    "dispatch": {
        **{"nonce": "0f", "nodes": 2, "by": "me@here", "workspace": "w", "source": "s", "content": "c"},
        **{"complete": JOB, "rehash": False, "plan": True, "node": 1, **PLACE},
        **{"tree": "t", "base": "b", "manifest_bytes": 5},
    },
    "adopt": {"job": "my-job", "node": 1, "nodes": 2},
    "prune": {"remove": {"jobs": [JOB], "content": [["wheel", "w"]]}},
    "setup": {"requirements": ["numpy>=2"]},
    "check": PORTS,
    "start": {
        **{"ref": JOB, "nodes": 2, "pserver_port": True, "host_name": False, "patient": True},
        **{**PORTS, "node": 1, "locked": 0},
    },
    "rejoin": {"ref": JOB, **PLACE},
    "stop": {"ref": JOB, "because": "m"},
    "save": {"ref": JOB, "limit_s": 300.0},
    "exec": {"script": "true"},
    "status": {**OF_RUN, "gpus": True},
    "jobs": {"over": True, "silence_s": 30.0, "stay": True, "hold": False},
    "find_named": {"ref": "a"},
    "diagnose": {**OF_RUN, "spec": True},
    "curves": {**OF_RUN, "buckets": 400},
    "events": {**OF_RUN, "kinds": ["step"]},
    "contents": {**OF_RUN, "list": True},
    "logs": {**OF_RUN, "id": 1, **LINES},
    "follow": {
        **{**OF_RUN, **LINES, "budget": 20, "speaker": {"role": "trainer", "rank": 0, "budget": 1000}},
        **{"events": False, "at": 5, "offsets": {"trainer0": 5}},
    },
    "find_checkpoints": {"ref": JOB, "copies": True},
    "find_models": {"ref": JOB, "copies": False},
    "verify_checkpoint": {
        **{**OF_RUN, "tag": "step-000000005"},
        "files": [{"file": "pserver-00000.safetensors", "pserver": 0, "bytes": 5, "sha256": "d", "node": 0}],
    },
    "collect": {
        **OF_RUN,
        "copies": {"tag": "pass-00000", "have": ["a"], "originals": True, "merged": {"run": "0001", "step": 5}},
    },
}


def samples() -> Iterator[tuple[str, Any, Callable[[Any], Any]]]:
    """Yield the name of each declaration, a value that is accepted, and what raises ValueError for others."""
    spec = json.loads(SPEC.read_text())
    yield "spec", spec, RunSpec.from_json
    yield "summary", spec, RunSummary.from_json
    for do, report in REPORTED.items():
        yield f"report {do}", {"do": do, **report}, lambda value: check(value, 1, OWN)
    for op, request in REQUESTED.items():
        yield f"request {op}", {"op": op, **request}, reader(REQUESTS[op])
    for operation, answer in ANSWERED.items():
        yield operation, answer, lambda value, kind=ANSWERS[operation]: read(kind, value, "")
    yield "news", NEWS, news
    yield "curves", {"curves": [CURVE]}, reader(CurvesAnswer)
    yield "end of curves", {"at": 1, "now": 2.0}, reader(CurvesEnd)
    yield "end of follow", {"node": {"state": "running"}}, reader(FollowEnd)
    yield "GPUs", GPUS, reader(GpuReport)
    yield "devices", {"devices": ["0"], "pool": "p", "problem": None}, reader(FoundDevices)
    yield "files", {"files": [["a", 1, "c"]]}, files_in
    yield "figures", FIGURES, reader(Figures)


def mutated(value: Any, rng: random.Random) -> Any:
    """Return a copy with one to three changes: a value replaced, a key or an item removed, added or repeated."""
    value = deepcopy(value)
    for _ in range(rng.randint(1, 3)):
        holder, key = rng.choice(list(_places(value)) or [(value, "later")])
        how = rng.random()
        if how < 0.7 or (key not in holder and isinstance(holder, dict)):
            holder[key] = deepcopy(rng.choice(STRANGE))
        elif how < 0.85:
            del holder[key]
        elif isinstance(holder, dict):
            holder["later"] = deepcopy(rng.choice(STRANGE))
        else:
            holder.insert(key, deepcopy(holder[key]))
    return value


def _places(holder: Any) -> Iterator[tuple[Any, Any]]:
    for key, value in list(holder.items() if isinstance(holder, dict) else enumerate(holder)):
        yield holder, key
        if isinstance(value, (dict, list)):
            yield from _places(value)


def verdicts() -> dict[str, str]:
    """Return the verdicts on the mutations of the sample of each declaration, a bit each, as a hexadecimal number."""
    found = {}
    for name, value, read_value in samples():
        read_value(deepcopy(value))
        accepted = [_is_accepted(read_value, mutated(value, random.Random(seed))) for seed in range(COUNT)]
        found[name] = f"{sum(one << seed for seed, one in enumerate(accepted)):0{COUNT // 4}x}"
    return found


def _is_accepted(read_value: Callable[[Any], Any], value: Any) -> bool:
    try:
        read_value(value)
    except ValueError:
        return False
    return True


if __name__ == "__main__":
    RECORDED.write_text(json.dumps(verdicts(), indent=1) + "\n")
