"""The environment of a process, parsed once. The only module of the runtime that reads os.environ.

| variable                 | meaning                                                             |
|--------------------------|---------------------------------------------------------------------|
| `CLUSTERCTL_ROLE`        | `pserver` or `trainer`; unset means local mode, all in this process |
| `CLUSTERCTL_JOB`, `_RUN` | names of the job and its run                                        |
| `CLUSTERCTL_JOB_DIR`     | absolute; spec and keys are under `.clusterctl/runs/RUN/`           |
| `CLUSTERCTL_NODE_ID`     | number of the node                                                  |
| `CLUSTERCTL_RANK`        | rank within the role                                                |
| `CLUSTERCTL_TRAINERS`    | how many trainers                                                   |
| `CLUSTERCTL_PSERVERS`    | `host:port,...` of every pserver by rank                            |
| `CLUSTERCTL_ATTEMPT`     | number of this start of the process, from 1                         |
| `CLUSTERCTL_OUTPUT_DIR`  | where saves go; `./output` in local mode                            |
| `CLUSTERCTL_CONTROL_FD`  | a connected unix socket to the supervisor                           |
| `CLUSTERCTL_SEED`        | the seed in local mode; in a run it is in spec.json                 |
| `CLUSTERCTL_ON_NAN`      | ON_NAN in local mode; in a run it is in spec.json                   |
| `CLUSTERCTL_CONNECTED_PID` | set by `connect()`: the process that called it, for its children   |
| `CLUSTERCTL_TRAINER_THREADS` | TRAINER_THREADS in local mode; in a run it is in spec.json      |
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from clusterctl.common.paths import JobPaths, RunPaths
from clusterctl.common.run_spec import Failures, RunSpec, Training
from clusterctl.common.safe_json import parse
from clusterctl.common.schema import SchemaError
from clusterctl.runtime.errors import ProcessError


class Environment(NamedTuple):
    """The role and rank of this process in a run, and the run's paths and settings."""

    role: str
    rank: int
    trainers: int
    job: str
    run: str
    job_dir: Path
    output_dir: Path
    seed: int
    spec: RunSpec
    attempt: int = 1
    pservers: tuple[str, ...] = ()
    control_fd: int | None = None

    @property
    def local(self) -> bool:
        return self.role == "local"

    @property
    def secure(self) -> bool:
        return self.spec.training.security != "none"

    @property
    def on_nan(self) -> str:
        """ "warn", "fail" or "skip"."""
        return self.spec.failures.on_nan

    @property
    def trainer_threads(self) -> int:
        return self.spec.training.trainer_threads or 1

    @property
    def table_wire(self) -> str | None:
        """WIRE of tables of the outer mode, "int8" or "int4"; None if they are sent as all others."""
        wire = self.spec.training.wire
        return wire if wire in ("int8", "int4") else None

    @property
    def checkpoint_dir(self) -> Path:
        return self.run_paths.checkpoints

    @property
    def state_dir(self) -> Path:
        """The directory of the newest state of this node's trainers."""
        return self.run_paths.dir / "state"

    def keys(self) -> dict[str, Any]:
        """Return this process's CURVE keys and those of its peers. Raises ProcessError if they are missing."""
        path = self.run_paths.process_keys(f"{self.role}{self.rank}")
        return _read_json(path, "the keys of this run were not delivered; start the job again")

    @property
    def run_paths(self) -> RunPaths:
        return JobPaths(self.job_dir).run(self.run)


def read_environment(environ: Mapping[str, str] | None = None) -> Environment:
    """Return the parsed environment. Raises ProcessError for a variable that is missing or malformed."""
    env = os.environ if environ is None else environ
    role = env.get("CLUSTERCTL_ROLE")
    if not role:
        return _local(env)
    if role not in ("pserver", "trainer"):
        raise ProcessError(f"CLUSTERCTL_ROLE={role!r} is neither pserver nor trainer")
    job_dir, run = Path(_text(env, "CLUSTERCTL_JOB_DIR")), _text(env, "CLUSTERCTL_RUN")
    spec = _read_spec(job_dir / ".clusterctl" / "runs" / run / "spec.json")
    pservers = tuple(p for p in env.get("CLUSTERCTL_PSERVERS", "").split(",") if p)
    control = env.get("CLUSTERCTL_CONTROL_FD")
    return Environment(
        role=role,
        rank=_number(env, "CLUSTERCTL_RANK"),
        trainers=_number(env, "CLUSTERCTL_TRAINERS"),
        job=_text(env, "CLUSTERCTL_JOB"),
        run=run,
        job_dir=job_dir,
        output_dir=Path(_text(env, "CLUSTERCTL_OUTPUT_DIR")),
        seed=spec.training.seed,
        spec=spec,
        attempt=_number(env, "CLUSTERCTL_ATTEMPT"),
        pservers=pservers,
        control_fd=_number(env, "CLUSTERCTL_CONTROL_FD") if control else None,
    )


def announce_connection(pid: int) -> None:
    """Let the processes that this one will start know that it, `pid`, has called `connect()`."""
    os.environ["CLUSTERCTL_CONNECTED_PID"] = str(pid)


def connected_pid() -> int | None:
    """Return the process that has called `connect()`, of which this one may be a descendant; None if none has."""
    value = os.environ.get("CLUSTERCTL_CONNECTED_PID", "")
    return int(value) if value.isdigit() else None


def _local(env: Mapping[str, str]) -> Environment:
    here = Path.cwd()
    output = Path(env.get("CLUSTERCTL_OUTPUT_DIR") or here / "output")
    seed = _number(env, "CLUSTERCTL_SEED") if env.get("CLUSTERCTL_SEED") else 0
    on_nan = env.get("CLUSTERCTL_ON_NAN") or "warn"
    if on_nan not in ("warn", "fail", "skip"):
        raise ProcessError(f"CLUSTERCTL_ON_NAN={on_nan!r} is not warn, fail or skip")
    threads = _number(env, "CLUSTERCTL_TRAINER_THREADS") if env.get("CLUSTERCTL_TRAINER_THREADS") else 1
    if threads < 1:
        raise ProcessError(f"CLUSTERCTL_TRAINER_THREADS='{threads}' is not an integer >= 1")
    failures, training = Failures(on_nan=on_nan), Training(trainer_threads=threads)
    spec = RunSpec(job="local", run="local", node=0, failures=failures, training=training)
    return Environment("local", 0, 1, "local", "local", here, output, seed, spec)


def _text(env: Mapping[str, str], name: str) -> str:
    value = env.get(name)
    if not value:
        raise ProcessError(f"{name} is not set", remedy="run under clusterctl, or unset CLUSTERCTL_ROLE for local mode")
    return value


def _number(env: Mapping[str, str], name: str) -> int:
    text = _text(env, name)
    try:
        return int(text)
    except ValueError as exc:
        raise ProcessError(f"{name}={text!r} is not an integer") from exc


def _read_spec(path: Path) -> RunSpec:
    try:
        return RunSpec.from_json(_read_json(path, "start the job with clusterctl start"))
    except SchemaError as exc:
        raise ProcessError(f"{path} is not the spec of a run: {exc}") from exc


def _read_json(path: Path, remedy: str) -> dict[str, Any]:
    try:
        data = parse(path.read_bytes())
    except (OSError, ValueError) as exc:
        raise ProcessError(f"{path} cannot be read ({exc})", remedy=remedy) from exc
    if not isinstance(data, dict):
        raise ProcessError(f"{path} does not hold a JSON object", remedy=remedy)
    return data
