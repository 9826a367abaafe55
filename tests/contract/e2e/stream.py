"""A long stream under faults: `python -m contract.e2e.stream SECONDS [MODE [DIRECTORY]]` in `tests`; sync or async.

A process appends numbered records to a file for SECONDS. Four trainers read it, each its share, and add 1 to a row of
an embedding for each record. Meanwhile a trainer and a pserver are killed, and the job is stopped and resumed. At the
end every record has been applied once, and neither memory nor disk has grown between the third and the last quarter of
the time after the last disturbance. Prints one line of JSON, and exits with 1 if anything does not hold.

In sync a killed pserver loses nothing: the run rolls back, and goes on to the `stop`. In async it loses the pushes
since its last checkpoint while the trainers go on, so from then on no model can have every record once. There the run
goes on to its next checkpoint, in which the rows of the other pserver still have to be exact. Then it is stopped,
checkpoints made after the kill are removed, and the run resumes from the newest one made before it.

Each checkpoint that is looked at has to agree with itself: its rows are those of the records before its cursors.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from clusterctl.runtime import load_model
from clusterctl.runtime.checkpoint.safetensors import TensorFile
from clusterctl.runtime.table.sharding import slots_of
from contract.e2e.watch import Watch
from support.processes import wait_until
from support.site import Site, make_site

ROWS, BATCH, TRAINERS, PSERVERS = 10_000, 10, 4, 2
RECORDS_PER_S = 200
RECORD_BYTES = 12
PASS_BATCHES = 50
DEADLINE_S = 90
SETTINGS: dict[str, Any] = {
    "PSERVERS": PSERVERS,
    "TRAINERS": TRAINERS,
    "KEEP": 6,  # those made between the kill of a pserver and the stop must not replace the one before
    "KEEP_MODELS": 3,
    "RESTARTS": 3,
    "COPIES": 1,
    "MODEL_ON_LEAD_MB": 0,
}
SAVE_EVERY = {"sync": "20 steps", "async": "4 s"}

TRAIN = f"""
import os, sys, time
import numpy as np
from clusterctl.runtime import SGD, connect, zeros

path, mode = sys.argv[1:]

with connect() as ps:
    counts = ps.embedding("counts", dim=1, rule=SGD(1.0), init=zeros())
    who = f"trainer {{ps.rank}}, run {{os.environ['CLUSTERCTL_RUN']}}, attempt {{os.environ['CLUSTERCTL_ATTEMPT']}}"

    def read(pass_, rng):
        at = ps.cursor or 0
        print(f"{{who}}: reading from {{at}}", flush=True)
        batch = []
        with open(path, "rb") as file:
            while True:
                file.seek(at)
                line = file.readline()
                if not line.endswith(b"\\n"):
                    time.sleep(0.05)
                    continue
                if line == b"end\\n":
                    return
                at += len(line)
                if int(line) % ps.trainers == ps.rank:
                    batch.append(int(line) % {ROWS})
                if len(batch) == {BATCH}:
                    ps.cursor = at
                    yield np.array(batch)
                    batch = []

    weight = ps.trainers if mode == "sync" else 1  # in sync the pservers take the mean over trainers
    for ids in ps.steps(read, passes=None, pass_batches={PASS_BATCHES}):
        ps.push({{counts: (ids, np.full((len(ids), 1), -weight, np.float32))}}, samples=1)
"""

# Appends records until its standard input is closed; then completes the batches of all trainers, and ends the file.
WRITE = f"""
import select, sys, time

began, written, goes_on = time.monotonic(), 0, True
with open(sys.argv[1], "ab", buffering=0) as file:
    while goes_on:
        goes_on = not select.select([sys.stdin], [], [], 0.02)[0]
        due = int((time.monotonic() - began) * {RECORDS_PER_S})
        due = due if goes_on else -(-max(due, 1) // {BATCH * TRAINERS}) * {BATCH * TRAINERS}
        file.write(b"".join(b"%0{RECORD_BYTES - 1}d\\n" % number for number in range(written, due)))
        written = due
    file.write(b"end\\n")
"""


class WrongError(Exception):
    """Something that was promised does not hold."""


class Stream:
    """A job that reads a growing file. Its methods wait for what they cause."""

    def __init__(self, site: Site, mode: str) -> None:
        self.site, self.mode = site, mode
        self.file = site.directory / "records"
        self.file.touch()
        self.writer = subprocess.Popen([sys.executable, "-c", WRITE, self.file], stdin=subprocess.PIPE)
        site.conf(HOSTS=site.hosts[:TRAINERS], MODE=mode, SAVE_EVERY=SAVE_EVERY[mode], **SETTINGS)
        self.job = site.dispatch(TRAIN)
        self.start("--", str(self.file), mode)

    def start(self, *args: str) -> str:
        started = self.site.ok("start", "--job_workspace", self.job, "--detach", *args)
        self.wait("all trainers read", lambda: self.readers() >= TRAINERS)
        return started.out

    def wait(self, what: str, condition: Callable[[], bool]) -> None:
        if not wait_until(condition, DEADLINE_S, every_s=0.2):
            raise WrongError(f"{what}: not within {DEADLINE_S} s")

    def run_dir(self, node: int) -> Path:
        return max((self.site.job_dir(self.job, node) / ".clusterctl/runs").iterdir())

    # Readers

    def calls(self) -> list[tuple[str, int, int, int]]:
        """Return the calls of readers in order, as (run, trainer, attempt, offset)."""
        found = []
        for node in range(TRAINERS):
            top = self.site.job_dir(self.job, node)
            for log in [*top.glob("log/train*"), *top.glob(".clusterctl/runs/*/log/train*")]:
                for match in re.finditer(r"trainer (\d+), run (\d+), attempt (\d+): reading from (\d+)\n", _text(log)):
                    rank, run, attempt, offset = match.groups()
                    found.append((run, int(rank), int(attempt), int(offset)))
        return sorted(found)

    def readers(self) -> int:
        """Return how often readers of the newest run were called."""
        return sum(run == self.run_dir(0).name for run, *_ in self.calls())

    # Checkpoints

    def checkpoints(self) -> list[str]:
        return sorted(path.parent.name for path in self.run_dir(0).glob("checkpoints/*/manifest.json"))

    def wait_for_checkpoint(self, after: str = "") -> str:
        """Return the newest checkpoint when there is one after `after`."""
        self.wait("a checkpoint", lambda: any(tag > after for tag in self.checkpoints()))
        return self.checkpoints()[-1]

    def check(self, tag: str, *, lossy: int | None = None) -> None:
        """Compare a checkpoint with its cursors; rows of the pserver `lossy` may lack records."""
        with tempfile.TemporaryDirectory(dir=self.site.directory) as name:
            whole = Path(name)
            for pserver in range(PSERVERS):
                shutil.copy(self.run_dir(pserver) / f"checkpoints/{tag}/pserver-{pserver:05d}.safetensors", whole)
            pieces = [TensorFile(path) for path in sorted(whole.iterdir())]
            cursors = zip(*(json.loads(piece.metadata["cursors"]) for piece in pieces), strict=True)
            ends = [max(of_one, key=lambda cursor: cursor["step"]).get("position") or 0 for of_one in cursors]
            parts = [np.arange(rank, end // RECORD_BYTES, TRAINERS) for rank, end in enumerate(ends)]
            fewer = np.zeros(ROWS, bool)
            if lossy is not None:
                first, after, of = json.loads(pieces[lossy].metadata["places"])
                place = slots_of(np.arange(ROWS), None) % of
                fewer = (first <= place) & (place < after)
            self.compare(f"checkpoint {tag}, cursors {ends}", load_model(whole)["counts"], parts, fewer)

    def compare(self, what: str, counts: Any, parts: list[Any], lossy: Any = False) -> None:
        """Compare the rows of a table with the records that it must have; those that are `lossy` may have fewer."""
        ids, values = counts
        got = np.zeros(ROWS)
        got[ids] = values.ravel()
        expected = np.bincount(np.concatenate(parts) % ROWS, minlength=ROWS)
        wrong = np.flatnonzero(np.where(lossy, got > expected, got != expected))
        if wrong.size:
            rows = [f"row {row}: {got[row]:g} instead of {expected[row]}" for row in wrong[:5].tolist()]
            calls = [f"run {run}, trainer {rank}, attempt {n}: from {at}" for run, rank, n, at in self.calls()]
            text = f"{what}: {wrong.size} rows differ, {got.sum():g} records instead of {expected.sum()}"
            raise WrongError("\n".join([text, *rows, *calls]))

    # Disturbances

    def kill(self, role: str, rank: int, restarted: int) -> None:
        """Kill a process, and wait until the trainers that restart with it read again."""
        [process] = [p for p in self.site.status(self.job)["processes"] if (p["role"], p["rank"]) == (role, rank)]
        before = self.readers()
        os.kill(process["pid"], signal.SIGKILL)
        self.wait(f"the kill of {role}{rank} is survived", lambda: self.readers() >= before + restarted)

    def stop_and_resume(self, newest: str | None) -> None:
        """Stop and resume, in async from the checkpoint `newest`."""
        self.site.ok("stop", self.job)
        for tag in self.checkpoints() if newest else []:
            for node in range(TRAINERS) if newest is not None and tag > newest else []:
                shutil.rmtree(self.run_dir(node) / "checkpoints" / tag, ignore_errors=True)
        from_ = self.checkpoints()[-1]
        out = self.start("--resume")
        if from_ not in out:
            raise WrongError(f"resumed from another checkpoint than {from_}:\n{out}")

    def finish(self) -> int:
        """End the file, wait for the end of the job, and compare the model. Return the number of records."""
        self.writer.communicate()
        done = self.site.run("logs", "-f", self.job, "--tail", "1", timeout_s=DEADLINE_S)
        state = self.site.status(self.job)["state"]
        if state != "succeeded":
            raise WrongError(f"the run has {state}\n{done.out[-2000:]}{done.err[-2000:]}")
        self.site.ok("collect", self.job, "-o", "home")
        records = (self.file.stat().st_size - len("end\n")) // RECORD_BYTES
        self.compare("the model", load_model(self.site.directory / "home/model")["counts"], [np.arange(records)])
        return records


def _text(path: Path) -> str:
    with contextlib.suppress(FileNotFoundError):  # it was moved aside
        return path.read_text(errors="replace")
    return ""


@contextlib.contextmanager
def _opened(directory: Path, mode: str) -> Iterator[Stream]:
    with make_site("embedded", directory, TRAINERS) as site:
        stream = Stream(site, mode)
        try:
            yield stream
        finally:
            stream.writer.communicate()


def measure(directory: Path, seconds: float, mode: str) -> dict[str, Any]:
    """Run the stream. Return its figures. Raises WrongError."""
    began = time.monotonic()

    def wait_until_share(share: float) -> None:
        wait_until(lambda: time.monotonic() >= began + share * seconds, seconds)

    trainer, pserver = random.randrange(TRAINERS), random.randrange(PSERVERS)
    with _opened(directory, mode) as stream:
        wait_until_share(0.1)
        stream.check(stream.wait_for_checkpoint())
        stream.kill("trainer", trainer, restarted=1)
        wait_until_share(0.2)
        before = stream.wait_for_checkpoint(after=stream.checkpoints()[-1])
        stream.check(before)
        stream.kill("pserver", pserver, restarted=TRAINERS)
        if mode == "sync":
            wait_until_share(0.3)
        stream.check(stream.wait_for_checkpoint(after=before), lossy=pserver if mode == "async" else None)
        stream.stop_and_resume(before if mode == "async" else None)
        stream.check(stream.wait_for_checkpoint())
        disturbed_s = time.monotonic() - began
        watch = Watch(stream.site, stream.job)
        watch.until(began + max(seconds, disturbed_s + seconds / 3))
        records = stream.finish()
        stream.site.assert_nothing_left(stream.job)
        for run, rank, attempt, offset in stream.calls():
            if offset == 0 and (run, attempt) != ("0001", 1):
                raise WrongError(f"trainer {rank} began at offset 0 in attempt {attempt} of run {run}")
        growth = watch.growth()
    figures = {"mode": mode, "killed": [f"trainer{trainer}", f"pserver{pserver}"], "disturbed_s": round(disturbed_s)}
    return {**figures, "seconds": round(time.monotonic() - began), "records": records, **growth}


def main(seconds: str = "60", mode: str = "sync", parent: str | None = None) -> None:
    with tempfile.TemporaryDirectory(prefix="stream-", dir=parent) as directory:
        try:
            figures = measure(Path(directory), float(seconds), mode)
        except (WrongError, AssertionError) as exc:
            sys.exit(str(exc))
    sys.stdout.write(json.dumps(figures) + "\n")
    if figures["grown"]:
        sys.exit(f"grown: {', '.join(figures['grown'])}")


if __name__ == "__main__":
    main(*sys.argv[1:])
