"""The state of runs as families of metrics for Prometheus: pure.

Names have base units and follow Prometheus's rules. Whoever controls a node or a program chooses the names of the
program's own metrics and of tables: they are values of labels, escaped, and at most MOST_NAMES a process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from prometheus_client import CollectorRegistry, make_wsgi_app
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)

from clusterctl.cluster.answers import StatusFacts
from clusterctl.errors import ClusterctlError
from clusterctl.escape import for_label
from clusterctl.observe.record.model import ProcessRecord
from clusterctl.observe.record.secrets import Redactor
from clusterctl.observe.record.status import JobStatus

T = TypeVar("T")
MOST_NAMES = 200  # of the metrics that a program logs, and of its tables: each is a time series
RUN = ("job", "run")
PROCESS = (*RUN, "role", "rank", "node")
#: Gauges by the name of the figure.
GAUGES: Mapping[str, tuple[str, str]] = {
    "step": ("clusterctl_step", "Newest step of a process; a roll back lowers it."),
    "pass": ("clusterctl_pass", "Newest pass of a trainer, from 0."),
    "loss": ("clusterctl_loss", "Mean loss of a trainer over the last second or so."),
    "samples_per_s": ("clusterctl_samples_per_second", "Throughput of a trainer."),
    "compute": ("clusterctl_compute_ratio", "Share of its time that a trainer computes."),
    "wait": ("clusterctl_wait_ratio", "Share of its time that a trainer waits for other trainers."),
    "wire": ("clusterctl_wire_ratio", "Share of its time that a trainer exchanges data with pservers."),
    "apply_s": ("clusterctl_apply_seconds", "Time that a pserver spent applying updates in the last second or so."),
    "send_s": ("clusterctl_send_seconds", "Time that a pserver spent sending replies in the last second or so."),
    "cpu": ("clusterctl_process_cpu_cores", "CPU that a process uses, in cores."),
    "memory": ("clusterctl_process_resident_memory_bytes", "Resident memory of a process."),
}
#: What a sparse table counts: its present size, and ids since its pserver started.
TABLE_GAUGES = {
    "rows": ("clusterctl_table_rows", "Rows of a sparse table on a pserver."),
    "bytes": ("clusterctl_table_bytes", "Memory of a sparse table on a pserver."),
}
TABLE_COUNTS = ("looked_up", "hits", "admitted", "refused", "expired", "evicted")


class Collector:
    """The collector that prometheus_client calls at each scrape. `read` returns the runs, or why there are none."""

    def __init__(
        self, read: Callable[[], tuple[Sequence[JobStatus], ClusterctlError | None]], secrets: Redactor
    ) -> None:
        self._read = read
        self._secrets = secrets

    def collect(self) -> Iterator[Metric]:
        statuses, error = self._read()
        yield from families(statuses, is_known=error is None, secrets=self._secrets)

    def describe(self) -> Sequence[Metric]:
        """Declare nothing, so that registering it does not ask the nodes."""
        return ()


def application(
    read: Callable[[], tuple[Sequence[JobStatus], ClusterctlError | None]], secrets: Redactor
) -> Callable[..., Any]:
    """Return a WSGI application that serves the metrics of what `read` returns."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(Collector(read, secrets))
    return make_wsgi_app(registry)


def families(statuses: Sequence[JobStatus], *, is_known: bool, secrets: Redactor) -> Iterator[Metric]:
    """Yield the metrics of the runs; `is_known` is False if no node answered. `secrets` are hidden in names."""
    yield GaugeMetricFamily("clusterctl_success", "1 if the state of the run could be read.", value=float(is_known))
    yield from _of_runs(statuses)
    processes = [
        (_labels(status, process), process) for status in statuses if status.run for process in status.processes
    ]
    yield from _of_processes(processes)
    yield from _of_pservers(processes, secrets)
    yield from _own(processes, secrets)


def _of_runs(statuses: Iterable[JobStatus]) -> Iterator[Metric]:
    info = InfoMetricFamily("clusterctl_run", "A run and its mode.", labels=RUN)
    state = GaugeMetricFamily("clusterctl_run_state", "1 for the state that a run is in.", labels=(*RUN, "state"))
    duration = GaugeMetricFamily("clusterctl_run_duration_seconds", "How long a run took, or has taken.", labels=RUN)
    warnings = GaugeMetricFamily("clusterctl_run_warnings", "Warnings of a run.", labels=RUN)
    up = GaugeMetricFamily("clusterctl_node_up", "1 if a node of the run answers.", labels=(*RUN, "node", "host"))
    for status in statuses:
        run = _run(status)
        answered = {view["node"] for view in status.nodes if view["ok"]}
        for node in status.members.nodes:
            up.add_metric([*run, node.label, for_label(node.where)], float(node.id in answered))
        state.add_metric([*run, status.state], 1.0)
        if status.run:
            lead: StatusFacts = status.lead or {}
            info.add_metric(run, {"mode": for_label(lead.get("mode") or "")})
            warnings.add_metric(run, float(len(status.warnings)))
            if (seconds := _duration_s(lead)) is not None:
                duration.add_metric(run, seconds)
    yield from (info, state, duration, warnings, up)


def _duration_s(lead: StatusFacts) -> float | None:
    """Return the duration by the clock of the lead's node."""
    ended = lead.get("ended")
    until = ended["t"] if ended else lead.get("now")
    started = lead.get("started")
    return None if until is None or started is None else max(0.0, until - started)


def _of_processes(processes: Iterable[tuple[list[str], ProcessRecord]]) -> Iterator[Metric]:
    state = GaugeMetricFamily("clusterctl_process_state", "1 for the state of a process.", labels=(*PROCESS, "state"))
    restarts = CounterMetricFamily("clusterctl_process_restarts", "Restarts of a process.", labels=PROCESS)
    gauges = {figure: GaugeMetricFamily(*about, labels=PROCESS) for figure, about in GAUGES.items()}
    for labels, process in processes:
        state.add_metric([*labels, for_label(process.state)], 1.0)
        restarts.add_metric(labels, float(process.restarts))
        for figure, gauge in gauges.items():
            if figure in process.figures:
                gauge.add_metric(labels, float(process.figures[figure]))  # type: ignore[literal-required]
    yield from (state, restarts, *gauges.values())


def _of_pservers(processes: Iterable[tuple[list[str], ProcessRecord]], secrets: Redactor) -> Iterator[Metric]:
    lost = CounterMetricFamily(
        "clusterctl_lost_pushes", "Pushes lost with the pserver before this one.", labels=PROCESS
    )
    staleness = HistogramMetricFamily(
        "clusterctl_push_staleness", "Pushes that a pserver applied between a pull and its push.", labels=PROCESS
    )
    tables = {name: GaugeMetricFamily(*about, labels=(*PROCESS, "table")) for name, about in TABLE_GAUGES.items()}
    ids = CounterMetricFamily("clusterctl_table_ids", "Ids by what became of them.", labels=(*PROCESS, "table", "what"))
    for labels, process in processes:
        if "lost" in process.figures:
            lost.add_metric(labels, float(process.figures["lost"]))
        if counts := process.figures.get("staleness"):
            staleness.add_metric(labels, *_histogram(counts))
        named = [(table["name"], table) for table in process.figures.get("tables") or ()]
        for name, table in _by_label(named, secrets)[0].items():
            for count, gauge in tables.items():
                gauge.add_metric([*labels, name], float(table.get(count, 0)))
            for what in TABLE_COUNTS:
                ids.add_metric([*labels, name, what], float(table.get(what, 0)))
    yield from (lost, staleness, *tables.values(), ids)


def _histogram(counts: Iterable[Sequence[int]]) -> tuple[list[tuple[str, float]], float]:
    """Return the cumulative counts up to 0, 1, 3, 7, ... and the sum, from pairs of a value and its count."""
    pairs = [(age, count) for age, count in counts]
    most = max(age for age, _ in pairs)
    limits = [(1 << bits) - 1 for bits in range(most.bit_length() + 1)]
    buckets = [(str(float(limit)), float(sum(n for age, n in pairs if age <= limit))) for limit in limits]
    return [*buckets, ("+Inf", float(sum(n for _, n in pairs)))], float(sum(age * n for age, n in pairs))


def _own(processes: Iterable[tuple[list[str], ProcessRecord]], secrets: Redactor) -> Iterator[Metric]:
    about = "Newest value of a metric that the program logged."
    values = GaugeMetricFamily("clusterctl_value", about, labels=(*PROCESS, "name"))
    about = f"Metrics of the program beyond {MOST_NAMES} a process, which are not shown."
    left_out = GaugeMetricFamily("clusterctl_values_left_out", about, labels=PROCESS)
    for labels, process in processes:
        shown, left = _by_label(sorted((process.figures.get("values") or {}).items()), secrets)
        for name, value in shown.items():
            values.add_metric([*labels, name], float(value))
        if left:
            left_out.add_metric(labels, float(left))
    yield from (values, left_out)


def _by_label(named: Iterable[tuple[str, T]], secrets: Redactor) -> tuple[dict[str, T], int]:
    """Return the first values by the label that their name becomes, and how many there are more."""
    shown: dict[str, T] = {}
    left = 0
    for name, value in named:
        label = for_label(secrets.hide(name))
        if label in shown or len(shown) == MOST_NAMES:
            left += 1
        else:
            shown[label] = value
    return shown, left


def _run(status: JobStatus) -> list[str]:
    return [status.job, str(int(status.run)) if status.run else ""]


def _labels(status: JobStatus, process: ProcessRecord) -> list[str]:
    labels: list[Any] = [*_run(status), process.role, process.rank, process.node.label]
    return [str(label) for label in labels]
