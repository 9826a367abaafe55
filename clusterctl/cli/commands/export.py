"""`clusterctl export`: a run as files for other programs; or its state, served to Prometheus."""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from clusterctl.api.report import export as write
from clusterctl.cli.console import plural
from clusterctl.cli.invocation import Invocation
from clusterctl.cluster.cluster import unwatched
from clusterctl.documents.local import MetricsDocument
from clusterctl.errors import ClusterctlError, UsageError
from clusterctl.export import TENSORBOARD, TRACE, Export, check_format
from clusterctl.export.scraped import Address, Reader, need_prometheus_client, serve

PROMETHEUS = "prometheus"
LISTEN = "127.0.0.1:9464"
CONFIG = """in prometheus.yml:
  scrape_configs:
    - job_name: clusterctl
      honor_labels: true
      static_configs:
        - targets: ["{address}"]"""


def export(
    invocation: Invocation, to: str, words: Sequence[str], output: Path | None, *, run: int | None, listen: str | None
) -> None:
    """Export the run that `words` name. Without -o the first of them is the directory, as in older versions."""
    if to == PROMETHEUS:
        if output is not None or run is not None or len(words) > 1:
            raise UsageError("export --to prometheus serves the newest run of a JOB, and writes no files")
        metrics(invocation, listen or LISTEN, words[0] if words else None)
        return
    check_format(to, PROMETHEUS)
    if listen is not None:
        raise UsageError("--listen is for --to prometheus only")
    if output is None and not words:
        raise UsageError("export needs a directory: -o DIR", hint=f"clusterctl export --to {to} -o DIR")
    directory, names = (output, words) if output is not None else (Path(words[0]), words[1:])
    if len(names) > 1:
        raise UsageError(f"clusterctl export: unexpected argument {names[1]!r}", hint="clusterctl export --help")
    job = names[0] if names else None
    with invocation.cluster_of(job, whole=True) as cluster:
        named = invocation.run_of(cluster, job, run)
        with invocation.progress.operation("exporting"):
            exported = write(cluster, named, to, directory)
        invocation.console.say(_summary(exported.written))
        for line in _next_steps(exported.written):
            invocation.console.say(line)
        invocation.console.finish(exported.document, exported.problem)


def _summary(exported: Export) -> str:
    what = plural(exported.count, "event" if exported.to == TRACE else "point")
    shown = plural(len(exported.files), "file") if exported.to == TENSORBOARD else " and ".join(exported.files)
    return f"exported {what} of {exported.record.name} into {exported.directory}/: {shown}"


def _next_steps(exported: Export) -> Iterator[str]:
    where = shlex.quote(str(exported.directory))
    if exported.to == TENSORBOARD:
        yield f"next: tensorboard --logdir {where}"
    elif exported.to == TRACE:
        yield f"next: open {where}/{exported.files[0]} in https://ui.perfetto.dev"


def metrics(invocation: Invocation, listen: str, job: str | None) -> None:
    console = invocation.console
    wanted = Address.parse(listen)
    need_prometheus_client()
    console.stream()
    with invocation.cluster_of(job) as cluster:
        reader = Reader(cluster, invocation.job_of(cluster, job))
        address = serve(wanted, reader)
        if not address.is_loopback:
            console.warn(f"warning: {address} has no login: everyone who can reach it sees the metrics")
        document: MetricsDocument = {"url": f"http://{address}/metrics"}
        console.record(document)
        console.say(f"serving http://{address}/metrics until Ctrl-C")
        console.say(CONFIG.format(address=address.seen_from_elsewhere))
        _, error = reader.read()
        if error is not None and job is not None and isinstance(error, UsageError):
            raise error  # there is no such job, and there will be none
        if error is not None:
            _tell_change(invocation, error)
        cluster.watch = unwatched  # no progress of scrapes
        reader.on_change = lambda now: _tell_change(invocation, now)
        while True:  # an interrupt that comes just before a wait does not end it
            time.sleep(1.0)


def _tell_change(invocation: Invocation, error: ClusterctlError | None) -> None:
    invocation.console.warn("the state of the run is known again" if error is None else f"{error}")
