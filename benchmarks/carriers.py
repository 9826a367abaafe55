"""Compare the seconds of a command on one node over SSH, `local`, and carriers that are there: ssh, srun, mpirun.

`alone` is the carrier without clusterctl: `srun ... true`. Slurm runs on this machine if this is root and its packages
are installed; mpirun starts its daemon by a program in place of ssh.
"""

from __future__ import annotations

import contextlib
import os
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from clusterctl.schedulers.slurm.hosts import carrier as srun
from farm import Contest, Cost, Farm, farm, options, program, run, scratch, show
from real.mpi.lab import AGENT
from real.mpi.lab import missing as no_mpirun
from real.slurm.lab import missing as no_slurm
from real.slurm.lab import slurm

COMMANDS = {"exec -- true": ("exec", "--", "true"), "status": ("status",)}
ALONE = "alone"


@dataclass(frozen=True)
class Carried:
    """A node and what reaches it: the words of VIA, or "ssh" or "local". `env` is added to the environment."""

    via: tuple[str, ...] | str
    host: str
    settings: Mapping[str, str] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)

    @property
    def alone(self) -> tuple[str, ...] | None:
        """What the carrier itself runs; None for those that are no program."""
        if isinstance(self.via, str):
            return None
        return (*(word.replace("{host}", self.host) for word in self.via), "true")

    def write_conf(self, path: Path) -> None:
        ours = {"HOSTS": [self.host], "VIA": self.via, "ROOT_DIR": str(path.with_suffix(""))}
        path.write_text("".join(f"{name} = {value!r}\n" for name, value in {**ours, **self.settings}.items()))


def by_ssh(nodes: Farm) -> dict[str, Carried]:
    """The built-in SSH, and the program ssh as a carrier, both to the same daemon."""
    settings = {name: str(getattr(nodes.sshd, name.lower())) for name in ("KNOWN_HOSTS", "SSH_CONFIG")}
    settings["IDENTITY_FILE"] = str(nodes.sshd.identity)
    words = ("ssh", "-F", str(nodes.peer_config), "{host}")
    return {"ssh (built in)": Carried("ssh", nodes.sshd.hosts[0], settings), "ssh": Carried(words, "node0")}


def by_mpirun(directory: Path) -> Carried:
    agent = directory / "agent"
    agent.write_text(AGENT.replace("{directory}", str(directory)))
    agent.chmod(0o755)
    allow = dict.fromkeys(("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"), "1")
    words = ("mpirun", "-np", "1", "--host", "{host}", "--oversubscribe")
    return Carried(words, "127.0.0.2", env={**allow, "OMPI_MCA_plm_rsh_agent": str(agent)})


@contextlib.contextmanager
def carriers(directory: Path) -> Iterator[dict[str, Carried]]:
    """Bring up a node for each carrier that this machine has. The reason is printed for the others."""
    with contextlib.ExitStack() as stack:
        found = by_ssh(stack.enter_context(farm(1, directory)))
        found["local"] = Carried("local", "here")
        if reason := no_slurm():
            print(f"without srun: {reason}")
        else:
            lab = stack.enter_context(slurm())
            job = lab.allocate("-N1")
            found["srun"] = Carried(srun(job), lab.node_of(job), env=lab.environment)
        if reason := no_mpirun():
            print(f"without mpirun: {reason}")
        else:
            found["mpirun"] = by_mpirun(directory)
        yield found


def prepare(directory: Path, carried: Carried, name: str) -> Path:
    """Write a conf.py, dispatch a job for `status`, and return the conf.py."""
    conf = directory / f"{name.partition(' ')[0]}-{len(list(directory.glob('*.py')))}.py"
    carried.write_conf(conf)
    run([*program(), "--conf", str(conf), "dispatch", str(directory / "workspace")], {**os.environ, **carried.env})
    return conf


def contest(directory: Path, found: Mapping[str, Carried]) -> Contest:
    """Let every command over every carrier take its turn in each round."""
    made = Contest({})
    for name, carried in found.items():
        conf, env = prepare(directory, carried, name), {**os.environ, **carried.env}
        for what, words in COMMANDS.items():
            argv = [*program(), "--conf", str(conf), *words]
            made.contenders[f"{name}: {what}"] = turn(argv, env)
        if carried.alone:
            made.contenders[f"{name}: {ALONE}"] = turn(carried.alone, env)
    return made


def turn(argv: Sequence[str], env: dict[str, str]) -> Callable[[int], Cost]:
    return lambda _: run(argv, env)


def shown(costs: list[Cost]) -> str:
    seconds = [cost.seconds for cost in costs]
    return f"{statistics.median(seconds):.2f} ({min(seconds):.2f}-{max(seconds):.2f})" if seconds else ""


def main() -> None:
    given = options(__doc__, rounds=9).parse_args()
    with scratch(given.dir) as top:
        (top / "workspace").mkdir()
        (top / "workspace" / "train.py").write_text("")
        with carriers(top) as found:
            played = contest(top, found).play(given.rounds)
    rows = [[name, *(shown(played.costs.get(f"{name}: {what}", [])) for what in (*COMMANDS, ALONE))] for name in found]
    show(["carrier, s (range)", *COMMANDS, ALONE], rows)


if __name__ == "__main__":
    main()
