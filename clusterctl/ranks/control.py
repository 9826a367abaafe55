"""The part of the first rank that starts the run: the nodes from what all ranks say, and then as `clusterctl start`."""

from __future__ import annotations

import datetime
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from clusterctl.cluster import Cluster, raise_failures
from clusterctl.common.requests import AdoptRequest
from clusterctl.config import Host, Settings, from_values, load
from clusterctl.config.scripts import scripts
from clusterctl.errors import ClusterctlError, NodeError
from clusterctl.inventory import Inventory, Node, build
from clusterctl.launch import Launch, plan, start
from clusterctl.ranks.errors import USAGE_CODE, RankError, of_the_system, say
from clusterctl.ranks.lifeline import REACH, program
from clusterctl.ranks.meeting import Meeting, Plan, PlannedNode, RankProcess, World, nodes_of
from clusterctl.ranks.private import check_program

RECORD_S = 60.0
MOST_ALIKE = 100  # jobs that began in the same second
Groups = Sequence[Sequence[RankProcess]]


def control(
    world: World, meeting: Meeting, command: Sequence[str], conf: Path | None, environ: Mapping[str, str]
) -> int:
    """Start the run. Print what came of it, and return 0 or the exit code of all ranks.

    `conf` is the conf.py with the settings; None: that of the shared directory, if there is one.
    """
    entries: Sequence[RankProcess] = []
    try:
        entries = meeting.gather(world.size)
        nodes = nodes_of(entries)
        run = _start(meeting, entries, nodes, read_settings(meeting, nodes, command, conf, environ))
    except (ClusterctlError, RankError, OSError) as exc:
        error = of_the_system(exc, meeting.shared) if isinstance(exc, OSError) else exc
        say(str(error), error.hint)
        code = error.exit_code if isinstance(error, ClusterctlError) else error.code
        meeting.fail(code, entries or list(meeting.entries()))
        return code
    for finding in run.findings:
        say(f"warning: {finding.message}", finding.hint)
    ranks, members = _plural(world.size, "trainer"), _plural(len(run.nodes), "node")
    say(f"{run.job} runs on {members} with {ranks}", f"clusterctl --conf {meeting.conf} status")
    return 0


def _plural(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def read_settings(
    meeting: Meeting, nodes: Groups, command: Sequence[str], conf: Path | None, environ: Mapping[str, str]
) -> Settings:
    """Return the settings of conf.py, with the ranks' nodes as hosts and their program as the trainers' command.

    Without PYTHON in conf.py it is the one that runs this program, which has what the runtime needs.
    """
    values = {
        "HOSTS": [
            Host(ranks[0].host, trainers=len(ranks), via=_carrier(meeting, number))
            for number, ranks in enumerate(nodes)
        ],
        "ROOT_DIR": f"{meeting.home}/node{{node}}",
        "TRAINERS": None,
        "TRAINERS_PER_NODE": 1,
        "TRAINER_COMMAND": list(command),
        "ON_NODE_LOSS": "fail",  # mpirun ends all ranks if one does
    }
    found = conf or meeting.shared / "conf.py"
    if conf is None:  # nobody has named it
        try:
            check_program(found)
        except FileNotFoundError:
            return replace(from_values(values, environ), python=sys.executable)
    settings = load(found, environ, overrides=values)
    return settings if "PYTHON" in settings.lines else replace(settings, python=sys.executable)


def _carrier(meeting: Meeting, node: int) -> tuple[str, ...]:
    return (*program(), REACH, str(meeting.calls(node)), "{host}")


def inventory_of(settings: Settings, nodes: Groups) -> Inventory:
    """Return the nodes, with the ranks that mpirun has put on each as its trainers, by local rank."""
    ranks = [tuple(entry.rank for entry in group) for group in nodes]
    built = build(settings).nodes
    return Inventory(tuple(replace(node, trainer_ranks=own) for node, own in zip(built, ranks, strict=True)))


def _start(meeting: Meeting, entries: Sequence[RankProcess], groups: Groups, settings: Settings) -> Launch:
    inventory = inventory_of(settings, groups)
    launch = plan(settings, inventory, cwd=str(Path.cwd()))
    for _, script in scripts(settings):
        if not Path(script).exists():
            hint = "call mpirun in the directory of the program, or name its whole path"
            raise RankError(f"there is no {script} in {Path.cwd()}", hint, USAGE_CODE)
    job = _make_job(inventory.nodes)
    planned = [
        PlannedNode(f"{node.root_dir}/{job}", node.trainer_ranks, _cpus(group), group[0].process)
        for node, group in zip(inventory.nodes, groups, strict=True)
    ]
    meeting.publish(Plan(job, planned), entries)
    with Cluster(settings, inventory, inventory.nodes) as cluster:
        raise_failures(cluster.map(lambda node: _record(cluster, node, job)), "making the job")
        _write_conf(meeting, job, settings, inventory)
        return start(cluster, launch, job, lambda run: None)


def _cpus(group: Sequence[RankProcess]) -> list[int]:
    return sorted({cpu for entry in group for cpu in entry.cpus})


def _make_job(nodes: Sequence[Node]) -> str:
    """Make an empty job directory for each node, all with the same new name, and return that."""
    first = datetime.datetime.now(datetime.timezone.utc).strftime("JOB%Y%m%d-%H%M%S")
    for job in (first, *(f"{first}-{number}" for number in range(2, MOST_ALIKE))):
        try:
            for node in nodes:
                Path(node.root_dir, job).mkdir(0o700, parents=True)
        except FileExistsError:
            continue
        except OSError as exc:
            raise NodeError(f"cannot make {exc.filename}: {exc.strerror}") from exc
        return job
    raise NodeError(f"cannot make a job: there are too many like {first}")


def _record(cluster: Cluster, node: Node, job: str) -> Any:
    """Let a node record its empty job directory, and so show that it sees it."""
    request: AdoptRequest = {"op": "adopt", "job": job, "node": node.id, "nodes": len(cluster.inventory.nodes)}
    with cluster.call(node, request) as call:
        return call.result(RECORD_S)


def _write_conf(meeting: Meeting, job: str, settings: Settings, inventory: Inventory) -> None:
    nodes = [ConfNode(node.ssh_host, len(node.trainer_ranks), node.via) for node in inventory.nodes]
    text = conf_text(job, settings.root_dir, settings.python, str(meeting.dir), nodes)
    meeting.write_conf(text)


TEXT = '''\
"""The nodes of {job}, which mpirun started. Written by clusterctl-rank."""

from os.path import isdir
from socket import gethostname

ROOT_DIR = {root!r}
PYTHON = {python!r}
is_live = isdir({ranks!r})


def node(host, trainers, *through_its_rank):
    is_far = is_live and host != gethostname()
    return Host(host, trainers=trainers, via=through_its_rank if is_far else "local")


HOSTS = [
{nodes}
]
'''


class ConfNode(NamedTuple):
    """A node: its machine, the number of its trainers, and the words of the carrier while the run is under way."""

    host: str
    trainers: int
    via: Sequence[str]


def conf_text(job: str, root: str, python: str, ranks: str, nodes: Sequence[ConfNode]) -> str:
    """Return the file. While the directory `ranks` exists, other machines are reached through their ranks."""
    lines = [f"    node({', '.join(repr(word) for word in (host, trainers, *via))})," for host, trainers, via in nodes]
    return TEXT.format(job=job, root=root, python=python, ranks=ranks, nodes="\n".join(lines))
