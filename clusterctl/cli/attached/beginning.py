"""Report a run that begins: what it starts from, the nodes that it leaves out, and warnings."""

from __future__ import annotations

import shlex

from clusterctl.cli.attached.follow import identity
from clusterctl.cli.chosen_settings import shown_option
from clusterctl.cli.commands.check import finding_lines
from clusterctl.cli.console import plural
from clusterctl.cli.invocation import Invocation
from clusterctl.cluster import Cluster, combined, fold_errors
from clusterctl.config import Settings
from clusterctl.documents.jobs import StartDocument
from clusterctl.escape import clean
from clusterctl.launch import Launch, Origin, Resume
from clusterctl.observe.record.references import job_name


def begun(invocation: Invocation, cluster: Cluster, started: list[Launch], run: Launch) -> None:
    """Report a run before its first node is ordered to start, and add it to `started`."""
    started.append(run)
    starting: StartDocument = {**identity(run), "state": "starting"}
    invocation.console.on_document(starting)
    _report_left_out(invocation, cluster, run)
    for line in finding_lines(run.findings):
        invocation.console.say(line)


def supervisors_up(invocation: Invocation, cluster: Cluster, run: Launch) -> None:
    name = job_name(cluster.inventory, run.job)
    invocation.console.say(f"{name} run {int(run.run)}: supervisors are up on {plural(len(run.nodes), 'node')}")


def _report_left_out(invocation: Invocation, cluster: Cluster, run: Launch) -> None:
    """Warn about nodes left out of the run: why, the processes that remain, the data that no trainer reads."""
    if not run.left_out:
        return
    errors = list(run.left_out.values())
    invocation.tolerate(combined(errors, len(cluster.nodes), "start"))
    pservers, trainers = _counts(run)
    whole = cluster.inventory
    rest = f"{pservers} of {whole.pserver_count} pservers and {trainers} of {whole.trainer_count} trainers"
    invocation.console.warn(f"{len(errors)} of {len(cluster.nodes)} nodes left out; the run has {rest}")
    for line in fold_errors(errors):
        invocation.console.warn(clean(line, keep_newlines=True))
    missing = whole.trainer_count - trainers
    if missing and cluster.settings.shards:
        unread = f"no trainer reads the data shards (SHARDS) of {plural(missing, 'missing trainer')}"
        could_move = cluster.inventory.node_loss == "move" and cluster.settings.shard_copies == 1
        hint = "; SHARD_COPIES = 2 leaves each on another node, too" if could_move else ""
        invocation.console.warn(f"{unread}{hint}")


def _counts(run: Launch) -> tuple[int, int]:
    """Count the pservers and the trainers of the run."""
    return sum(len(node.pserver_ranks) for node in run.nodes), sum(len(node.trainer_ranks) for node in run.nodes)


def tell_origin(invocation: Invocation, origin: Origin, settings: Settings) -> None:
    """Print the checkpoint or model that a run starts from, and the newer ones that are unusable."""
    for line in origin.warnings:
        invocation.console.warn(clean(line, keep_newlines=True))
    words = _resuming(invocation, origin, settings) if isinstance(origin, Resume) else f"loading {origin}"
    invocation.console.output(clean(words))


def _resuming(invocation: Invocation, resume: Resume, settings: Settings) -> str:
    kept = resume.arguments if invocation.program_args is None else None
    arguments = f" with its arguments: {shlex.join(kept)}" if kept else ""
    again = [shown_option(name, text) for name, text in resume.settings.items() if settings.chosen.get(name) == text]
    options = f"{' and' if kept else ' with'} its settings: {' '.join(again)}" if again else ""
    return f"resuming from {resume}{arguments}{options}"
