"""Ranks as mpirun starts them, without mpirun: each a process that knows its place by its environment."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from clusterctl.ranks.node_run import NodeRun
from contract.e2e.programs import READY
from support.places import ROOT
from support.processes import Proc, kill_all, processes_with_environment, wait_until
from support.site import agent_processes

MAIN = ROOT / "clusterctl" / "ranks" / "__main__.py"
MARK = "CLUSTERCTL_TEST_RANKS"  # in the environment of all that ranks start, except processes of the run
SETTINGS = "GRACE_S = 2\nRESTARTS = 0\nCOPIES = 1\nMODEL_ON_LEAD_MB = 0\n"
# Each rank fails as the file named after it says, or waits to be stopped.
OBEYS = f"""
import os, pathlib, sys, time
rank = os.environ["CLUSTERCTL_RANK"]
print("up", rank, flush=True)
{READY}
while True:
    order = pathlib.Path("order-" + rank)
    if order.exists():
        os._exit(int(order.read_text()))
    time.sleep(0.02)
"""


class Ranks:
    """A working directory, and the processes that belong to it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.shared = directory
        self.env = {**os.environ, MARK: str(directory), "XDG_CACHE_HOME": str(directory / "cache"), "COLUMNS": "120"}
        self.env["OPENBLAS_NUM_THREADS"] = "1"
        self.conf(SETTINGS)

    @property
    def home(self) -> Path:
        return self.shared / "clusterctl-jobs"

    def conf(self, text: str) -> None:
        (self.directory / "conf.py").write_text(text)

    def train(self, program: str) -> None:
        (self.directory / "train.py").write_text(program)

    def obey(self) -> None:
        """Let each trainer wait for its order. There are no pservers, which take time to start."""
        self.conf(SETTINGS + "PSERVERS = 0\n")
        self.train(OBEYS)

    def begin(
        self, rank: int, size: int, local_rank: int, local_size: int, *options: str, through: Sequence[str] = ()
    ) -> subprocess.Popen[str]:
        """Start a rank in a session of its own, perhaps `through` a program that starts it."""
        place = {"RANK": rank, "SIZE": size, "LOCAL_RANK": local_rank, "LOCAL_SIZE": local_size}
        found = {f"OMPI_COMM_WORLD_{name}": str(number) for name, number in place.items()}
        return subprocess.Popen(
            [*through, sys.executable, str(MAIN), *options, "python", "train.py"],
            cwd=self.directory,
            env={**self.env, **found, "PMIX_NAMESPACE": "7@1", "PMIX_RANK": str(rank)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def one_node(self, size: int = 2) -> list[subprocess.Popen[str]]:
        return [self.begin(rank, size, rank, size) for rank in range(size)]

    def one_on_each_node(self, size: int = 2) -> list[subprocess.Popen[str]]:
        return [self.begin(rank, size, 0, 1) for rank in range(size)]

    def cluster(self, *args: str, check: bool = True) -> str:
        """Run a command as a user does beside the jobs, and return its output."""
        done = subprocess.run(
            [sys.executable, "-m", "clusterctl", *args],
            cwd=self.home,
            env={**self.env, "PYTHONPATH": str(MAIN.parents[2])},
            capture_output=True,
            text=True,
            timeout=90,
            check=False,
        )
        assert done.returncode == 0 or not check, done.stdout + done.stderr
        return done.stdout

    def jobs(self) -> list[Path]:
        """Return the job directories of all nodes."""
        return sorted(self.home.glob("node*/JOB*"))

    def trainer_pids(self) -> list[int]:
        """Return the pids of the trainers, once they run their program."""
        dirs = [str(job) for job in self.jobs()]
        return [one.pid for one in processes_with_environment("CLUSTERCTL_JOB_DIR", *dirs) if "train.py" in one.command]

    def processes(self) -> list[Proc]:
        """Return everything that belongs to ranks of this directory."""
        dirs = [str(job) for job in self.jobs()]
        of_runs = processes_with_environment("CLUSTERCTL_JOB_DIR", *dirs) + agent_processes(*dirs)
        found = [*of_runs, *processes_with_environment(MARK, str(self.directory))]
        return list({process.pid: process for process in found}.values())

    def rank_pid(self, rank: int) -> int:
        """Return the pid of a rank, as it has entered it."""
        [entry] = self.home.glob(f"ranks/*/rank-{rank}.json")
        return int(json.loads(entry.read_text())["process"][0])

    def logs(self) -> list[Path]:
        """Return those logs of trainers in which there is something."""
        return [log for job in self.jobs() for log in job.glob("log/train*.log") if log.stat().st_size]

    def printed(self) -> str:
        """Return what all trainers have printed."""
        return "".join(log.read_text() for log in self.logs())

    def wait_for_output(self, count: int) -> None:
        """Wait until so many trainers have printed something."""
        assert wait_until(lambda: len(self.logs()) >= count), [list(job.rglob("*")) for job in self.jobs()]

    def end_state(self) -> str:
        """Return how the only run has ended, for its lead, once nothing is left of it."""
        self.assert_nothing_left()
        state = NodeRun(self.jobs()[0]).ended()
        assert state is not None
        return str(state["ended"]["state"])

    def assert_nothing_left(self) -> None:
        wait_until(lambda: all(NodeRun(job).is_over() for job in self.jobs()))  # to look at all processes costs time
        wait_until(lambda: not self.processes())
        left = self.processes()
        self.end()
        assert left == []

    def end(self) -> None:
        kill_all(process.pid for process in self.processes())


@contextlib.contextmanager
def ranks_in(directory: Path) -> Iterator[Ranks]:
    """Give ranks a directory; nothing of them may be left afterwards."""
    directory.mkdir(exist_ok=True)
    made = Ranks(directory)
    try:
        yield made
    except BaseException:
        made.end()
        raise
    made.assert_nothing_left()


def ends(ranks: Sequence[subprocess.Popen[str]], timeout_s: float = 90) -> list[tuple[int, str, str]]:
    """Wait for all, and return the exit code, output and standard error of each."""
    try:
        said = [rank.communicate(timeout=timeout_s) for rank in ranks]
    finally:
        kill_all(rank.pid for rank in ranks if rank.poll() is None)
    return [(rank.returncode, out, err) for rank, (out, err) in zip(ranks, said, strict=True)]
