"""Four nodes for mpirun on this machine: a program in place of ssh runs Open MPI's daemons here, whatever the host.

- 127.0.0.2 to .5 are hosts to mpirun, each with two slots. Its daemons have a session and a TMPDIR each, as on other
  machines: they make directories of the same names there.
- Everything has a variable with the directory in its environment, except processes of runs, which have their job's.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from unit.ranks.started import MAIN, Ranks, ranks_in

HOSTS = tuple(f"127.0.0.{number}" for number in range(2, 6))
SLOTS = 2
AGENT = """\
#!/bin/sh
# as ssh: options, a host, and words that are joined to a line for a shell
while [ "${1#-}" != "$1" ]; do shift; done
TMPDIR="{directory}/$1"
mkdir -p "$TMPDIR"
export TMPDIR
shift
exec setsid -w /bin/sh -c "$*"
"""
PROGRAM = """\
#!/bin/sh
exec {python} {main} "$@"
"""


def missing() -> str:
    """Return what this machine lacks, "" if nothing."""
    absent = [program for program in ("mpirun", "orted") if shutil.which(program) is None]
    return f"no {', '.join(absent)}: apt-get install openmpi-bin" if absent else ""


class Lab:
    """Four nodes with two slots each, and a directory that they share, which is the working directory."""

    def __init__(self, ranks: Ranks) -> None:
        self.ranks = ranks
        self.directory = ranks.directory
        self.bin = self.directory / "bin"
        self.bin.mkdir()
        self.hostfile = self.directory / "hosts"
        self.hostfile.write_text("".join(f"{host} slots={SLOTS}\n" for host in HOSTS))
        self._write_program("agent", AGENT.replace("{directory}", str(self.directory)))
        if not Path(sys.executable).with_name("clusterctl-rank").exists():
            self._write_program("clusterctl-rank", PROGRAM.format(python=sys.executable, main=MAIN))

    def _write_program(self, name: str, text: str) -> None:
        (self.bin / name).write_text(text)
        (self.bin / name).chmod(0o755)

    @property
    def environment(self) -> dict[str, str]:
        path = f"{self.bin}:{Path(sys.executable).parent}:{os.environ.get('PATH', '')}"
        names = ("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM")
        settings = {"plm_rsh_agent": str(self.bin / "agent"), "hwloc_base_binding_policy": "none"}
        given = {f"OMPI_MCA_{name}": value for name, value in settings.items()}
        return {**self.ranks.env, **dict.fromkeys(names, "1"), **given, "PATH": path}

    def begin(self, *words: str, np: int = 8, options: Sequence[str] = ()) -> subprocess.Popen[str]:
        """Start mpirun on all nodes, in a process group of its own; `words` are those after its own options."""
        return self.begin_program("mpirun", "-np", str(np), "--hostfile", str(self.hostfile), *options, *words)

    def begin_program(self, *words: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            words,
            cwd=self.directory,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def train(self, *options: str, np: int = 8, of_mpirun: Sequence[str] = ()) -> subprocess.Popen[str]:
        """Start clusterctl-rank with the program of the working directory."""
        return self.begin("clusterctl-rank", *options, "python", "train.py", np=np, options=of_mpirun)


def end(mpirun: subprocess.Popen[str], timeout_s: float = 120) -> tuple[int, str, str]:
    """Wait for mpirun; return its exit code, output and standard error."""
    try:
        out, err = mpirun.communicate(timeout=timeout_s)
    finally:
        if mpirun.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(mpirun.pid, signal.SIGKILL)
    return mpirun.returncode, out, err


@contextlib.contextmanager
def lab_in(directory: Path) -> Iterator[Lab]:
    """Give mpirun four nodes; nothing of them may be left afterwards."""
    with ranks_in(directory) as ranks:
        yield Lab(ranks)
