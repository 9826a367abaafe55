"""A cluster and the `clusterctl` program as a user has them."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from support import forked
from support.clusters import make_cluster
from support.processes import Proc, kill_all, processes_with_environment, wait_until

GRACE_S = 2


@dataclass(frozen=True)
class Result:
    code: int
    out: str
    err: str

    def json(self) -> Any:
        return json.loads(self.out)


class Site:
    """Four nodes, each with a home. `conf` writes a conf.py for them; every call of the program is a real process.

    `environment` is added to the environment of each.
    """

    def __init__(self, directory: Path, nodes_directory: Path, hosts: list[str], paths: dict[str, Path]) -> None:
        self.directory = directory
        self.nodes_directory = nodes_directory
        self.hosts = hosts
        self.paths = paths
        self.environment: dict[str, str] = {}
        self.defaults: dict[str, Any] = {}
        self.conf_path = directory / "conf.py"
        self.conf()

    def conf(self, **settings: Any) -> Path:
        """Rewrite conf.py with short grace periods, no restarts, and `settings`."""
        values: dict[str, Any] = {"HOSTS": self.hosts, "GRACE_S": GRACE_S, "RESTARTS": 0}
        values |= {**self.defaults, **self.paths, **settings}
        plain = {name: str(value) if isinstance(value, Path) else value for name, value in values.items()}
        self.conf_path.write_text("".join(f"{name} = {value!r}\n" for name, value in plain.items()))
        return self.conf_path

    def home(self, node: int) -> Path:
        embedded = self.nodes_directory / "nodes" / f"node{node}"
        return embedded if embedded.is_dir() else self.nodes_directory / f"node{node}" / "home"

    def bin(self, node: int) -> Path:
        """The first directory in the PATH of an OpenSSH node; it does not exist unless a test creates it."""
        return self.nodes_directory / f"node{node}" / "bin"

    def job_dir(self, job: str, node: int) -> Path:
        return self.home(node) / "clusterctl" / job

    def popen(self, *args: str, **options: Any) -> subprocess.Popen[str]:
        env = {
            **os.environ,
            "CLUSTERCTL_CONF": str(self.conf_path),
            "COLUMNS": "120",
            "XDG_CACHE_HOME": str(self.nodes_directory / "cache"),
            **self.environment,
            **options.pop("env", {}),
        }
        return forked.popen(
            [*options.pop("program", (sys.executable, "-m", "clusterctl")), *args],
            cwd=options.pop("cwd", self.directory),
            env=env,
            stdin=options.pop("stdin", subprocess.DEVNULL),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            errors="replace",
            **options,
        )

    def run(self, *args: str, timeout_s: float = 180, **options: Any) -> Result:
        with self.popen(*args, **options) as process:
            try:
                out, err = process.communicate(timeout=timeout_s)
            except subprocess.TimeoutExpired:
                process.kill()
                out, err = process.communicate()
                raise AssertionError(f"{args} took longer than {timeout_s} s:\n{out}\n{err}") from None
        return Result(process.returncode, out, err)

    def ok(self, *args: str, **options: Any) -> Result:
        result = self.run(*args, **options)
        assert result.code == 0, f"{args}: exit {result.code}\n{result.out}\n{result.err}"
        return result

    def workspace(self, train: str, name: str = "workspace", **files: str) -> Path:
        """Make a workspace with this train.py."""
        directory = self.directory / name
        directory.mkdir(exist_ok=True)
        (directory / "train.py").write_text(train)
        for file, text in files.items():
            (directory / file).write_text(text)
        return directory

    def dispatch(self, train: str) -> str:
        job: str = self.ok("dispatch", str(self.workspace(train)), "--json").json()["job"]
        return job

    def dispatch_again(self, workspace: Path) -> str:
        job: str = self.ok("dispatch", str(workspace), "--json").json()["job"]
        return job

    def start(self, train: str, *args: str) -> str:
        """Dispatch and start a job, detached; return its id."""
        package = str(self.workspace(train))
        job: str = self.ok("start", "--job_dispatch_package", package, "--detach", "--json", *args).json()["job"]
        return job

    def status(self, job: str) -> Any:
        return self.run("status", job, "--json").json()

    def has_ended(self, job: str) -> bool:
        """Return True once node 0, the lead, has recorded the end of the first run. Cheaper than `status`."""
        events = self.job_dir(job, 0) / ".clusterctl/runs/0001/events.jsonl"
        return '"event":"ended"' in events.read_text()

    def wait_for_end(self, job: str) -> None:
        """Wait until the first run has ended, on all nodes."""
        assert wait_until(lambda: self.has_ended(job)), f"{job} goes on"
        self.assert_nothing_left(job)

    def processes(self, job: str) -> list[Proc]:
        """Return the processes of a job on all nodes, including supervisors."""
        directories = [str(self.job_dir(job, node)) for node in range(len(self.hosts))]
        all_processes = processes_with_environment("CLUSTERCTL_JOB_DIR", *directories) + agent_processes(*directories)
        return list({proc.pid: proc for proc in all_processes}.values())

    def supervisor(self, job: str, node: int) -> int:
        """Return the pid. A child has its parent's command line for a moment, until it runs its own program."""
        return self.agents(job, node)[0]

    def agents(self, job: str, node: int) -> tuple[int, int]:
        """Return the pids of the supervisor and its guardian; wait until there are exactly these.

        A child has its parent's command line for a moment, until it runs its own program.
        """
        found: dict[str, list[int]] = {}

        def are_two() -> bool:
            processes = agent_processes(str(self.job_dir(job, node)))
            found.update(
                {kind: [p.pid for p in processes if f" {kind} " in p.command] for kind in ("supervisor", "guardian")}
            )
            return all(len(pids) == 1 for pids in found.values())

        assert wait_until(are_two), found
        return found["supervisor"][0], found["guardian"][0]

    def assert_nothing_left(self, job: str) -> None:
        wait_until(lambda: not self.processes(job))
        left = self.processes(job)
        assert not left, left

    def end_everything(self) -> None:
        """Kill all leftover processes, after a test that failed halfway."""
        kill_all(proc.pid for proc in self.leftovers())

    def leftovers(self) -> list[Proc]:
        """Return all processes of the nodes except their SSH servers."""
        homes = [str(self.home(node)) for node in range(len(self.hosts))]
        return [proc for proc in processes_with_environment("HOME", *homes) if "sshd" not in proc.command]


def agent_processes(*job_dirs: str) -> list[Proc]:
    """Return the supervisors and guardians of job directories, which do not have the run's environment."""
    wanted = {os.fsencode(job_dir) for job_dir in job_dirs}
    matches = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                words = (entry / "cmdline").read_bytes().split(b"\0")
                if any(word.endswith(b"/agent/entry.py") for word in words) and not wanted.isdisjoint(words):
                    matches.append(Proc(int(entry.name), b" ".join(words).decode(errors="replace")))
    return matches


def events_in(log: Path) -> list[dict[str, Any]]:
    """Return the events of an event log. The supervisor may be writing: a last line without an end is none yet."""
    complete, _, _ = log.read_text().rpartition("\n")
    return [json.loads(line) for line in complete.splitlines()]


@contextlib.contextmanager
def make_site(kind: str, directory: Path, n: int = 4) -> Iterator[Site]:
    with make_cluster(kind, directory / "cluster", n) as made:
        assert made.settings.identity_file is not None
        assert made.settings.known_hosts is not None
        assert made.settings.ssh_config is not None
        hosts = [f"{node.ssh_host}:{node.ssh_port}" for node in made.nodes]
        paths = {
            "IDENTITY_FILE": made.settings.identity_file,
            "KNOWN_HOSTS": made.settings.known_hosts,
            "SSH_CONFIG": made.settings.ssh_config,
        }
        work = directory / "work"
        work.mkdir()
        site = Site(work, made.directory, hosts, paths)
        try:
            yield site
        finally:
            site.end_everything()


@contextlib.contextmanager
def fresh(site: Site, request: pytest.FixtureRequest) -> Iterator[Site]:
    """Give a test the same nodes with its own directory and the default conf.py; no process may be left afterwards.

    The mark `nodes(2)` selects the first two nodes: each one costs time, and few tests need all of them. For the same
    reason, only tests with the mark `copies` copy and merge models, as COPIES and MODEL_ON_LEAD_MB do by default.
    """
    before = every, _, _ = site.hosts, site.directory, site.conf_path
    mark = request.node.get_closest_marker("nodes")
    site.hosts = every[: mark.args[0]] if mark else every
    site.defaults = {} if request.node.get_closest_marker("copies") else {"COPIES": 1, "MODEL_ON_LEAD_MB": 0}
    site.directory = request.getfixturevalue("tmp_path") / "work"
    site.directory.mkdir()
    site.conf_path = site.directory / "conf.py"
    site.conf()
    yield site
    site.hosts, site.directory, site.conf_path = before  # pytest removes the directory of the test
    # An agent whose connection is gone ends on its own, but not at the same instant.
    wait_until(lambda: not site.leftovers())
    left = site.leftovers()
    site.end_everything()
    assert not left, f"processes left on the nodes: {left}"


def assert_its_reader_may_leave(process: subprocess.Popen[str]) -> None:
    """Assert that a program ends silently, as of SIGPIPE, once nobody reads its output any more."""
    assert process.stdout is not None
    process.stdout.readline()
    process.stdout.close()
    assert process.wait(180) == 141
    assert process.stderr is not None
    with process.stderr:
        assert process.stderr.read() == ""
