"""`clusterctl export --to prometheus`, and `clusterctl metrics`, its older name."""

from __future__ import annotations

import time

from clusterctl.cli.invocation import Invocation
from clusterctl.cluster.cluster import unwatched
from clusterctl.documents.local import MetricsDocument
from clusterctl.errors import ClusterctlError, UsageError
from clusterctl.export.scraped import Address, Reader, need_prometheus_client, serve

CONFIG = """in prometheus.yml:
  scrape_configs:
    - job_name: clusterctl
      honor_labels: true
      static_configs:
        - targets: ["{address}"]"""


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
            _warn(invocation, error)
        cluster.watch = unwatched  # no progress of scrapes
        reader.on_change = lambda now: _warn(invocation, now)
        while True:  # an interrupt that comes just before a wait does not end it
            time.sleep(1.0)


def _warn(invocation: Invocation, error: ClusterctlError | None) -> None:
    invocation.console.warn("the state of the run is known again" if error is None else f"{error}")
