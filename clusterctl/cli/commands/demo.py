"""`clusterctl demo`: train a real model on a fake cluster, from nothing to a collected model."""

from __future__ import annotations

import contextlib
import math
import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from clusterctl import fake
from clusterctl.api.start import OriginOptions, StartTarget, prepared
from clusterctl.cli.attached.follow import follow_run
from clusterctl.cli.chart import resample, svg_chart, terminal_chart
from clusterctl.cli.commands.collect import collect_run
from clusterctl.cli.commands.dispatch import send
from clusterctl.cli.commands.start import launch_and_follow
from clusterctl.cli.commands.stop import stop_job
from clusterctl.cli.invocation import Invocation
from clusterctl.cluster import Cluster, raise_failures
from clusterctl.documents.local import DemoDocument
from clusterctl.errors import ConfigError, JobFailedError, RefusedError
from clusterctl.fake import check_backend
from clusterctl.launch import Launch
from clusterctl.observe.record.live import LiveRecord, PassNumbers
from clusterctl.observe.record.references import Reference
from clusterctl.templates import copy_workspace

HOME = Path("clusterctl-demo")


EACH_NODE_IS = {
    "embedded": "with its own SSH server, key and home",
    "ssh": "with its own OpenSSH daemon, key and home",
    "docker": "a container with its own sshd, key and address",
}


def demo(invocation: Invocation, nodes: int, passes: int, backend: str, directory: Path | None) -> None:
    started = time.monotonic()
    check_backend(backend, nodes)  # before anything is created
    target = _make_target(directory)
    workspace = _prepare_workspace(invocation, target, nodes)
    with (
        _fake_cluster(invocation, target / "cluster", nodes, backend) as conf,
        invocation.cluster(invocation.settings_of(conf)) as cluster,
    ):
        scores, view = _train(invocation, cluster, workspace, passes)
        model = _collect(invocation, cluster, target)
        _prove_stopped(invocation, cluster)
    _show_results(invocation, target, workspace, model, view)
    _close(invocation, target, nodes, backend, scores, time.monotonic() - started, model)


def _make_target(directory: Path | None) -> Path:
    """Create a new directory for everything that this demo writes, so that demos never share files."""
    if directory is not None:
        if directory.exists() and any(directory.iterdir()):
            raise RefusedError(f"{directory} is not empty", hint="choose an empty or new directory with --dir")
        directory.mkdir(parents=True, exist_ok=True)
        return directory
    stamp = datetime.now().strftime("%Y%m%d-%H%M%S")
    for suffix in ("", *(f"-{number}" for number in range(2, 100))):
        target = HOME / (stamp + suffix)
        try:
            target.mkdir(parents=True)
        except FileExistsError:
            continue
        return target
    raise RefusedError(f"no unused name for a new demo in {HOME}", hint=f"remove the old ones: rm -r {HOME}")


def _prepare_workspace(invocation: Invocation, target: Path, shards: int) -> Path:
    workspace = target / "workspace"
    copy_workspace(workspace)
    command = [sys.executable, "prepare_data.py", "--shards", str(shards)]
    prepared = subprocess.run(command, cwd=workspace, capture_output=True, text=True, check=False)
    if prepared.returncode:
        raise ConfigError(f"prepare_data.py failed: {prepared.stderr.strip()[-500:]}")
    invocation.console.say(prepared.stdout.strip())
    return workspace


@contextlib.contextmanager
def _fake_cluster(invocation: Invocation, directory: Path, nodes: int, backend: str) -> Iterator[Path]:
    """Start a cluster that goes down with this process, however it ends."""
    say = invocation.console.say
    with fake.up(directory, nodes, backend=backend, lifeline=True, remove=True, tell=say) as cluster:
        say(f"fake cluster: {nodes} nodes, each {EACH_NODE_IS[backend]}")
        yield cluster.conf


def _train(
    invocation: Invocation, cluster: Cluster, workspace: Path, passes: int
) -> tuple[list[tuple[float, float]], LiveRecord]:
    """Train; return (held-out perplexity, unigram perplexity) of every pass, and the run."""
    sent = send(invocation, cluster, workspace)
    raise_failures(sent.outcomes, "dispatch")
    scores: list[tuple[float, float]] = []

    def pass_line(numbers: PassNumbers) -> str:
        scores.append((math.exp(numbers.values["held_out_nll"]), math.exp(numbers.values["unigram_nll"])))
        held_out, unigram = scores[-1]
        times = f"{unigram / held_out:.1f} times better"
        return f"pass {numbers.pass_}: held-out perplexity {held_out:.1f}, unigram {unigram:.1f} ({times})"

    def follow(invocation: Invocation, cluster: Cluster, run: Launch) -> LiveRecord:
        return follow_run(invocation, cluster, run, pass_line)

    options: Any = {"args": [f"--num_passes={passes}"], "as_given": True}
    with prepared(
        lambda kept: contextlib.nullcontext(cluster), StartTarget(sent.job), OriginOptions(), **options
    ) as ready:
        return scores, launch_and_follow(invocation, cluster, ready.launch, sent.job, follow)


def _collect(invocation: Invocation, cluster: Cluster, target: Path) -> Path:
    collection = collect_run(invocation, cluster, Reference(None), target / "results", document=False)
    if collection.model is None:
        raise JobFailedError("training saved no complete model")
    return collection.model


def _prove_stopped(invocation: Invocation, cluster: Cluster) -> None:
    stop_job(invocation, cluster, None)


def _show_results(invocation: Invocation, target: Path, workspace: Path, model: Path, view: LiveRecord) -> None:
    reports = [(float(step), loss) for step, loss in view.curve]  # from each trainer, once a second
    points = resample(reports, max(2, len(reports) // len(view.trainers)))
    for line in terminal_chart(points):
        invocation.console.say(line)
    title = "training loss, mean over trainers"
    (target / "loss.svg").write_text(svg_chart(points, title, "step", "loss (nats per word)"))
    command = [sys.executable, "neighbours.py", str(model.resolve())]
    shown = subprocess.run(command, cwd=workspace, capture_output=True, text=True, check=False)
    invocation.console.say("\n".join(["", "nearest neighbours:", shown.stdout.rstrip() or shown.stderr.rstrip()]))


def _close(
    invocation: Invocation,
    target: Path,
    nodes: int,
    backend: str,
    scores: list[tuple[float, float]],
    seconds: float,
    model: Path,
) -> None:
    held_out, unigram = scores[-1]
    document: DemoDocument = {
        "nodes": nodes,
        "backend": backend,
        "perplexity": held_out,
        "unigram_perplexity": unigram,
        "passes": [{"held_out": ours, "unigram": baseline} for ours, baseline in scores],
        "seconds": seconds,
        "model": str(model),
        "curve": str(target / "loss.svg"),
    }
    invocation.console.document(document)
    say = invocation.console.say
    say()
    say(f"done in {seconds:.0f} s: held-out perplexity {held_out:.1f}, unigram baseline {unigram:.1f}")
    say(f"model  {model}")
    say(f"curve  {target / 'loss.svg'}")
    say(f"logs   {target / 'results'}/node-*/log")
    say("the fake cluster is down; nothing is left running")
    say()
    say("next: do the same by hand, then put your own machines into HOSTS")
    kind = "" if backend == "embedded" else f" --backend {backend}"
    name = program(invocation.environ)
    say(f"  {name} init try && cd try && {name} fake up -n 4{kind}")
    say("  python3 workspace/prepare_data.py --shards 4")
    say("  export CLUSTERCTL_CONF=fake/conf.py")
    say(f"  {name} start workspace")


def program(environ: Mapping[str, str]) -> str:
    """Return what starts this program from another directory: its path, unless the user's shell finds its name.

    uvx has the directory of the program in the PATH of the program alone, and sets UV.
    """
    called = Path(sys.argv[0]).absolute()
    found = "UV" not in environ and shutil.which("clusterctl", path=environ.get("PATH"))
    is_found = found and Path(found).absolute() == called
    return "clusterctl" if is_found or not os.access(called, os.X_OK) else shlex.quote(str(called))
