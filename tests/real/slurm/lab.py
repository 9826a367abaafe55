"""A real Slurm on one machine: munge, slurmctld and four slurmd with names of their own. Needs root and no systemd.

Everything is below one directory, on ports that were free, and dies with this process. Clients find it by SLURM_CONF.

- `tracking`: with "linuxproc" a step's processes are those that its tree shows; with "cgroup" those in its cgroup
  (v1), which also holds them to their memory.
- Names of nodes are those of no other laboratory: the kernel knows cgroups by these names.
- The directory has a short name, because slurmstepd makes sockets in it.
- Credentials expire after 5 s, not 120: for so long a requeued job keeps its nodes from starting it again.
- A silent slurmd is down after SLURMD_TIMEOUT_S. Time limits are whole minutes, looked at every 30 s.
- A job of the partition `urgent` requeues one of `train`. Without slurmdbd there is no accounting: `sacct` only fails.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from clusterctl.schedulers.slurm.hosts import carrier
from support import forked, processes
from support.processes import kill_all, processes_below, processes_with_environment

COUNT = 4
CPUS = 4
MEMORY_MB = 2000
SLURMD_TIMEOUT_S = 10
POLL_S = 0.1  # each question is a process
DIES_WITH_US = ("setpriv", "--pdeathsig", "KILL", "--")
PROGRAMS = ("munged", "slurmctld", "slurmd", "srun", "sbatch", "setpriv")
PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"

CONF = """\
ClusterName=lab
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ctld_port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={directory}/munge.socket,cred_expire=5
StateSaveLocation={directory}/state
SlurmdSpoolDir={directory}/%n
SlurmctldPidFile={directory}/slurmctld.pid
SlurmdPidFile={directory}/%n.pid
SlurmctldLogFile={directory}/slurmctld.log
SlurmdLogFile={directory}/%n.log
ProctrackType=proctrack/{tracking}
TaskPlugin=task/{task}
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
SlurmdParameters=config_overrides
SlurmdTimeout={slurmd_timeout}
KillWait=2
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
DefMemPerNode=200
SchedulerParameters=batch_sched_delay=0,bf_interval=1,sched_interval=2,sched_min_interval=50000
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
JobAcctGatherType=jobacct_gather/linux
JobAcctGatherFrequency=1
{memory}
AccountingStorageType=accounting_storage/none
GresTypes=gpu
{nodes}
PartitionName=train Nodes=ALL Default=YES MaxTime=INFINITE PriorityTier=1 OverSubscribe=NO State=UP
PartitionName=urgent Nodes=ALL MaxTime=INFINITE PriorityTier=2 PreemptMode=OFF OverSubscribe=NO State=UP
"""
# One of the two holds steps to their memory; Slurm refuses to start with both.
TRACKING = {
    "linuxproc": {"task": "none", "memory": "JobAcctGatherParams=OverMemoryKill"},
    "cgroup": {"task": "cgroup", "memory": ""},
}
CGROUP = """\
CgroupPlugin=cgroup/v1
CgroupMountpoint=/sys/fs/cgroup
ConstrainRAMSpace=yes
ConstrainCores=no
"""


_numbers = itertools.count(1)


def wait_until(condition: Callable[[], bool], deadline_s: float = 60.0) -> bool:
    """Wait for what commands of Slurm say."""
    return processes.wait_until(condition, deadline_s, POLL_S)


def _names() -> tuple[str, ...]:
    laboratory = next(_numbers)
    return tuple(f"n{os.getpid()}x{laboratory}-{number}" for number in range(1, COUNT + 1))


def missing() -> str:
    """Return what this machine lacks, "" if nothing."""
    if os.geteuid() != 0:
        return "a laboratory of Slurm needs root"
    absent = [program for program in PROGRAMS if shutil.which(program, path=PATH) is None]
    return f"no {', '.join(absent)}: apt-get install slurmctld slurmd slurm-client munge" if absent else ""


@dataclass
class Lab:
    """`nodes` are the names of the nodes, all in one partition, each with CPUS cores and MEMORY_MB."""

    directory: Path
    nodes: tuple[str, ...] = field(default_factory=_names)
    _daemons: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def conf(self) -> Path:
        return self.directory / "slurm.conf"

    @property
    def environment(self) -> dict[str, str]:
        """This process's environment, outside any allocation, with the commands of this Slurm."""
        ours = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM", "SBATCH", "SALLOC"))}
        return {**ours, "SLURM_CONF": str(self.conf), "PATH": PATH}

    def run(self, *argv: str, timeout_s: float = 60, **variables: str) -> subprocess.CompletedProcess[str]:
        """Run a command to its end, whatever it is; `variables` are added to its environment."""
        return forked.run(argv, timeout=timeout_s, env={**self.environment, **variables})

    def output(self, *argv: str, **variables: str) -> str:
        """Run a command that has to succeed, and return its output without white space around it."""
        done = self.run(*argv, **variables)
        assert done.returncode == 0, f"{argv}: {done.stderr}"
        return done.stdout.strip()

    def submit(self, script: str, *options: str) -> str:
        """Submit a script for sh, and return the id of the job."""
        wrapped = ("--output", str(self.directory / "job-%j.out"), "--chdir", str(self.directory), "--wrap", script)
        return self.output("sbatch", "--parsable", *options, *wrapped)

    def allocate(self, *options: str) -> str:
        """Return the id of a running job that has nodes and runs nothing."""
        job = self.submit("sleep infinity", *options)
        self.wait_for(job, "RUNNING")
        return job

    def step(self, job: str, node: str, *argv: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """Run a command on a node of a job as our carrier does, and return its output and srun's exit code."""
        words = [word.replace("{host}", node) for word in carrier(job)]
        return self.run(*words, *argv, **variables)

    def begin_step(self, job: str, node: str, *argv: str) -> subprocess.Popen[bytes]:
        """Begin a command on a node; its output, also that to stderr, is in pipes. The caller waits for it."""
        words = [word.replace("{host}", node) for word in carrier(job)]
        pipe = subprocess.PIPE
        return subprocess.Popen([*words, *argv], stdin=pipe, stdout=pipe, stderr=pipe, env=self.environment)

    def nodes_of(self, job: str) -> list[str]:
        return self.output("scontrol", "show", "hostnames", self.output("squeue", "-h", "-j", job, "-o", "%N")).split()

    def node_of(self, job: str) -> str:
        return self.nodes_of(job)[0]

    def state(self, job: str) -> str:
        return self.output("squeue", "-h", "-t", "all", "-j", job, "-o", "%T")

    def wait_for(self, job: str, *states: str, deadline_s: float = 60) -> None:
        reached = wait_until(lambda: self.state(job) in states, deadline_s)
        assert reached, f"job {job} is {self.state(job)}, not {states}"

    def wait_for_nodes(self, *names: str, state: str = "idle") -> None:
        chosen = ",".join(names or self.nodes)
        reached = wait_until(lambda: set(self.output("sinfo", "-hN", "-n", chosen, "-o", "%T").split()) == {state})
        assert reached, self.output("sinfo", "-N", "-o", "%N %T %E")

    def start_node(self, name: str) -> None:
        self._start(name, "slurmd", "-D", "-N", name)

    def kill(self, name: str) -> None:
        """Kill -9 the slurmd of a node, and nothing else there; or "slurmctld"."""
        daemon = self._daemons.pop(name)
        daemon.kill()
        daemon.wait()

    def start_controller(self, *options: str) -> None:
        self._start("slurmctld", "slurmctld", "-D", *options)
        assert wait_until(lambda: self.run("scontrol", "ping").returncode == 0), self.log("slurmctld")

    def clean(self) -> None:
        """End all jobs, and bring all nodes back."""
        for name in self.nodes:
            if name not in self._daemons:
                self.start_node(name)

        def is_empty() -> bool:
            states = self.output("squeue", "-h", "-o", "%T").split()
            if any(state != "COMPLETING" for state in states):
                self.run("scancel", "--user", "root")
            return not states

        assert wait_until(is_empty), self.output("squeue")
        down = self.output("sinfo", "-hN", "-t", "down,drain", "-o", "%N").split()
        for name in dict.fromkeys(down):
            self.run("scontrol", "update", f"nodename={name}", "state=resume")
        self.wait_for_nodes()

    def open(self, tracking: str) -> None:
        """Start everything, and return when all nodes are idle."""
        (self.directory / "state").mkdir()
        key = self.directory / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o600)
        ports = free_ports(1 + len(self.nodes))
        host = socket.gethostname().partition(".")[0]
        nodes = [
            f"NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} "
            f"CPUs={CPUS} RealMemory={MEMORY_MB} Gres=gpu:2"
            for name, port in zip(self.nodes, ports[1:], strict=True)
        ]
        values = {"host": host, "ctld_port": ports[0], "directory": self.directory, "nodes": "\n".join(nodes)}
        values["slurmd_timeout"] = SLURMD_TIMEOUT_S
        self.conf.write_text(CONF.format(tracking=tracking, **TRACKING[tracking], **values))
        self.conf.with_name("cgroup.conf").write_text(CGROUP)
        for number in range(2):  # GPUs by name only
            (self.directory / f"gpu{number}").touch()
        self.conf.with_name("gres.conf").write_text(f"Name=gpu File={self.directory}/gpu[0-1]\n")
        # --force: the directory of a test need not be as closed as munged wants it
        names = {"--key-file": "munge.key", "--socket": "munge.socket", "--seed-file": "munge.seed"}
        files = {**names, "--pid-file": "munge.pid", "--log-file": "munged.log"}
        given = [f"{option}={self.directory / name}" for option, name in files.items()]
        self._start("munged", "munged", "--foreground", "--force", *given)
        assert wait_until((self.directory / "munge.socket").exists), self.log("munged")
        for name in self.nodes:
            self.start_node(name)
        self.start_controller()
        self.wait_for_nodes()

    def close(self) -> None:
        """End everything that was started here, or by jobs."""
        if "slurmctld" in self._daemons:
            with contextlib.suppress(AssertionError):
                self.clean()
        for name in list(self._daemons):
            self.kill(name)
        left = [*processes_below(self.directory), *processes_with_environment("SLURM_CONF", str(self.conf))]
        kill_all(process.pid for process in left)
        for name in self.nodes:
            for top in Path("/sys/fs/cgroup").glob(f"*/slurm_{name}"):
                for group in sorted((path for path in top.rglob("*") if path.is_dir()), reverse=True):
                    _remove(group)
                _remove(top)

    def log(self, name: str) -> str:
        return (self.directory / f"{name}.log").read_text(errors="replace")

    def _start(self, name: str, *argv: str) -> None:
        with (self.directory / f"{name}.out").open("ab") as output:
            self._daemons[name] = subprocess.Popen(
                [*DIES_WITH_US, *argv],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=self.environment,
                start_new_session=True,
            )


def _remove(group: Path) -> None:
    """Remove a cgroup. Its last process may still be on its way out."""

    def removed() -> bool:
        with contextlib.suppress(OSError):
            group.rmdir()
        return not group.exists()

    wait_until(removed, 5)


@contextlib.contextmanager
def slurm(tracking: str = "linuxproc") -> Iterator[Lab]:
    """Run a Slurm in a directory of its own, and end all its processes afterwards."""
    with tempfile.TemporaryDirectory(prefix="lab-", dir=os.environ.get("PYTEST_DEBUG_TEMPROOT")) as directory:
        lab = Lab(Path(directory))
        try:
            lab.open(tracking)
            yield lab
        finally:
            lab.close()


def free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for sock in sockets:
            sock.bind(("127.0.0.1", 0))
        return [sock.getsockname()[1] for sock in sockets]
