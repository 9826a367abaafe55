"""The metrics for Prometheus, from made-up states of runs."""

from __future__ import annotations

import math
import shutil
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from clusterctl.export.families import MOST_NAMES, families
from clusterctl.observe.record.members import Members
from clusterctl.observe.record.model import Figures, ProcessRecord
from clusterctl.observe.record.secrets import Redactor
from clusterctl.observe.record.status import JobStatus
from contract.security.liars import is_harmless
from unit.export.made_up import EVIL, JOB, NODES, SECRET, T

TRAINER = {"step": 35, "pass": 1, "loss": 0.5, "samples_per_s": 90.0, "compute": 0.7, "wait": 0.2, "wire": 0.1}
TRAINER |= {"cpu": 0.9, "memory": 2 << 20, "values": {"auc": 0.75, EVIL: math.inf}}
TABLE = {"name": "word", "rows": 7, "bytes": 700, "looked_up": 10, "hits": 9, "admitted": 7}
PSERVER = {"lost": 2, "staleness": [[0, 5], [1, 3], [3, 2], [4, 1]], "tables": [TABLE], "apply_s": 0.1, "send_s": 0.2}


def process(role: str, node: int = 0, **figures: Any) -> ProcessRecord:
    known: Figures = figures  # type: ignore[assignment]
    return ProcessRecord(role, node, "running", 1, node=NODES[node], figures=known)


def status(*processes: ProcessRecord, answering: int = 2, **changes: Any) -> JobStatus:
    lead: Any = {"mode": "ssp(4)", "started": T, "now": T + 60, "ended": None}
    nodes = [{"node": node.id, "host": node.where, "ok": node.id < answering} for node in NODES]
    made = JobStatus(JOB, Members("0001", NODES, ()), "running", list(processes), nodes, [], lead)
    return JobStatus(**{**vars(made), **changes})


def text(*statuses: JobStatus, is_known: bool = True) -> str:
    class Collector:
        def collect(self) -> Iterator[Any]:
            return families(statuses, is_known=is_known, secrets=Redactor({"API": SECRET}))

    registry = CollectorRegistry(auto_describe=False)
    registry.register(Collector())  # type: ignore[arg-type]
    return generate_latest(registry).decode()


def samples(*statuses: JobStatus) -> dict[tuple[str, ...], float]:
    """Return values by the name and the values of the labels, without those of the job and the run."""
    rows = [sample for family in text_string_to_metric_families(text(*statuses)) for sample in family.samples]
    found = {
        (one.name, *(value for name, value in one.labels.items() if name not in ("job", "run"))): one.value
        for one in rows
    }
    assert len(found) == len(rows), "a series comes twice"
    return found


def test_a_trainer_has_its_figures_with_base_units() -> None:
    found = samples(status(process("trainer", **TRAINER)))
    about = ("node0", "0", "trainer")
    shown = {key[0]: value for key, value in found.items() if key[1:] == about}
    assert shown == {
        "clusterctl_step": 35,
        "clusterctl_pass": 1,
        "clusterctl_loss": 0.5,
        "clusterctl_samples_per_second": 90,
        "clusterctl_compute_ratio": 0.7,
        "clusterctl_wait_ratio": 0.2,
        "clusterctl_wire_ratio": 0.1,
        "clusterctl_process_cpu_cores": 0.9,
        "clusterctl_process_resident_memory_bytes": 2 << 20,
        "clusterctl_process_restarts_total": 1,
    }
    assert found["clusterctl_process_state", "node0", "0", "trainer", "running"] == 1
    assert found["clusterctl_value", "auc", "node0", "0", "trainer"] == 0.75


def test_a_pserver_has_its_tables_and_a_histogram_of_staleness() -> None:
    found = samples(status(process("pserver", **PSERVER)))
    about = ("node0", "0", "pserver")
    assert found[("clusterctl_lost_pushes_total", *about)] == 2
    buckets = {key[1]: value for key, value in found.items() if key[0] == "clusterctl_push_staleness_bucket"}
    assert buckets == {"0.0": 5, "1.0": 8, "3.0": 10, "7.0": 11, "+Inf": 11}
    assert found[("clusterctl_push_staleness_count", *about)] == 11
    assert found[("clusterctl_push_staleness_sum", *about)] == 3 + 6 + 4
    assert found[("clusterctl_table_rows", *about, "word")] == 7
    assert found[("clusterctl_table_ids_total", *about, "word", "hits")] == 9


def test_a_run_has_its_state_and_mode_and_a_silent_node_is_shown() -> None:
    found = samples(status(answering=1))
    assert found["clusterctl_run_info", "ssp(4)"] == 1
    assert found["clusterctl_run_state", "running"] == 1
    assert found["clusterctl_run_duration_seconds",] == 60
    assert found["clusterctl_node_up", "a", "node0"] == 1
    assert found["clusterctl_node_up", "b", "node1"] == 0
    assert found["clusterctl_success",] == 1


def test_a_run_that_has_ended_keeps_its_duration() -> None:
    lead: Any = {"mode": None, "started": T, "now": T + 60, "ended": {"t": T + 5, "state": "succeeded"}}
    assert samples(status(lead=lead))["clusterctl_run_duration_seconds",] == 5


def test_a_job_that_was_never_started_has_a_state_only() -> None:
    found = samples(status(members=Members(None, NODES, ()), state="dispatched", lead=None))
    assert {key for key in found if key[0] not in ("clusterctl_success", "clusterctl_node_up")} == {
        ("clusterctl_run_state", "dispatched")
    }


def test_several_jobs_are_told_apart_by_their_labels() -> None:
    shown = text(status(process("trainer", **TRAINER)), status(process("trainer", **TRAINER), job="JOB20261122-000000"))
    assert f'clusterctl_step{{job="{JOB}",node="node0",rank="0",role="trainer",run="1"}} 35.0' in shown
    assert 'clusterctl_step{job="JOB20261122-000000",' in shown


def test_without_an_answer_only_that_is_shown() -> None:
    assert [line for line in text(is_known=False).splitlines() if line[0] != "#"] == ["clusterctl_success 0.0"]


def test_at_most_200_own_metrics_of_a_process_are_shown_and_the_rest_is_counted() -> None:
    many = {f"m{number}": float(number) for number in range(MOST_NAMES + 5)}
    found = samples(status(process("trainer", values=many), process("trainer", 1, values={"m0": 1.0})))
    shown = [key for key in found if key[0] == "clusterctl_value"]
    assert len([key for key in shown if "node0" in key]) == MOST_NAMES == 200
    assert [key[1] for key in shown if "node1" in key] == ["m0"]
    assert found["clusterctl_values_left_out", "node0", "0", "trainer"] == 5


def test_names_that_become_the_same_label_are_one_series() -> None:
    """Prometheus refuses a scrape that has a series twice."""
    clash = {"a\x01b": 1.0, "a\u2401b": 2.0, "x" * 300: 3.0, "x" * 400: 4.0}
    tables = [{**TABLE, "name": name} for name in clash]
    found = samples(status(process("trainer", values=clash), process("pserver", tables=tables)))
    assert len([key for key in found if key[0] == "clusterctl_value"]) == 2
    assert found["clusterctl_values_left_out", "node0", "0", "trainer"] == 2


def test_hostile_words_stay_in_their_labels() -> None:
    lead: Any = {"mode": EVIL, "started": T, "now": T, "ended": None}
    evil = process("trainer", values={EVIL: math.nan}, tables=[{**TABLE, "name": EVIL}])
    evil.state = EVIL
    shown = text(status(evil, lead=lead))
    assert is_harmless(shown)
    values = [sample for family in text_string_to_metric_families(shown) for sample in family.samples]
    assert {sample.name for sample in values} == {
        key[0] for key in samples(status(process("trainer", values={"a": 1.0}, tables=[TABLE])))
    }


def test_values_of_env_are_hidden() -> None:
    tables = [{**TABLE, "name": SECRET}]
    assert SECRET not in text(status(process("trainer", values={SECRET: 1.0}, tables=tables)))


@pytest.mark.skipif(shutil.which("promtool") is None, reason="needs promtool: apt-get install prometheus")
def test_promtool_has_no_objection() -> None:
    shown = text(status(process("trainer", **TRAINER), process("pserver", 1, **PSERVER)))
    done = subprocess.run(["promtool", "check", "metrics"], input=shown, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
