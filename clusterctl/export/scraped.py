"""A server of metrics for Prometheus: it asks the nodes for the state of the run when it is scraped.

It runs on the control machine, so no port opens on a node. It has no login.
"""

from __future__ import annotations

import errno
import importlib.util
import ipaddress
import re
import socket
import threading
import time
from collections.abc import Callable
from typing import NamedTuple

from clusterctl.cluster import Cluster, SeveralRunningError
from clusterctl.errors import ClusterctlError, RefusedError, UsageError
from clusterctl.export.metrics_server import MetricsServer
from clusterctl.export.patient_cluster import ANSWER_S, PatientCluster
from clusterctl.observe.record.secrets import Redactor
from clusterctl.observe.record.status import JobStatus, status

FRESH_S = 1.0
ADDRESS = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([^\s:/]+)):([0-9]{1,5})")
PORTS = range(65536)


class Address(NamedTuple):
    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> Address:
        """Parse `HOST:PORT`; an IPv6 address is in brackets. Raises UsageError."""
        match = ADDRESS.fullmatch(text)
        if match is None or int(match[3]) not in PORTS:
            hint = "write HOST:PORT, such as 127.0.0.1:9464 or [::1]:9464"
            raise UsageError(f"--listen {text} is not an address", hint=hint)
        return cls(match[1] or match[2], int(match[3]))

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def seen_from_elsewhere(self) -> Address:
        """Return the address to give to a Prometheus on another machine."""
        everywhere = self.host in ("0.0.0.0", "::")
        return Address(socket.gethostname(), self.port) if everywhere else self

    @property
    def is_loopback(self) -> bool:
        """Return True if only programs of this machine reach the address."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"


class Reader:
    """Reads the state of one job: of `ref`, or else of all that run, or else of the last that ran. Thread-safe.

    What was read last is valid for a second.
    """

    def __init__(self, cluster: Cluster, ref: str | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._cluster = PatientCluster(cluster, clock)
        self._ref = ref
        self._clock = clock
        self._lock = threading.Lock()
        self._read: tuple[float, list[JobStatus], ClusterctlError | None] | None = None
        self.secrets = Redactor(*(node.env for node in cluster.nodes))
        self.on_change: Callable[[ClusterctlError | None], None] = lambda error: None

    def read(self) -> tuple[list[JobStatus], ClusterctlError | None]:
        """Return the state of the runs, or why there is none."""
        with self._lock:
            if self._read is None or self._clock() - self._read[0] >= FRESH_S:
                before = self._read[2] if self._read else None
                statuses, error = self._ask()
                self._read = self._clock(), statuses, error
                if str(before) != str(error):
                    self.on_change(error)
            return self._read[1], self._read[2]

    def _ask(self) -> tuple[list[JobStatus], ClusterctlError | None]:
        try:
            return self._statuses(), None
        except ClusterctlError as exc:
            return [], exc

    def _statuses(self) -> list[JobStatus]:
        try:
            return [status(self._cluster, self._ref, answer_s=ANSWER_S)]
        except SeveralRunningError as several:
            return [status(self._cluster, job, answer_s=ANSWER_S) for job in several.jobs]


def need_prometheus_client() -> None:
    """Raise UsageError if prometheus_client is not installed."""
    if importlib.util.find_spec("prometheus_client") is None:
        raise UsageError("metrics need prometheus_client", hint="pip install 'clusterctl[metrics]'")


def serve(address: Address, reader: Reader) -> Address:
    """Serve metrics from background threads; return the address, with the port that was chosen for port 0.

    Raises RefusedError if the port is in use, and UsageError if this machine does not have the address.
    """
    from clusterctl.export.families import application

    try:
        server = MetricsServer(address.host, address.port, application(reader.read, reader.secrets))
    except OSError as exc:
        if exc.errno == errno.EADDRINUSE:
            hint = "stop the program that uses it, or name another port with --listen"
            raise RefusedError(f"cannot listen on {address}: the port is in use", hint=hint) from exc
        raise UsageError(f"cannot listen on {address}: {exc.strerror or exc}") from exc
    threading.Thread(target=server.serve_forever, name="metrics", daemon=True).start()
    return Address(address.host, server.server_port)
