"""Exports and metrics: a hostile node spoils neither the files, nor what the other nodes have in them."""

from __future__ import annotations

import csv
import itertools
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from clusterctl.cluster import Cluster
from clusterctl.config import load
from clusterctl.export.families import Collector
from clusterctl.export.scraped import Reader
from clusterctl.inventory import build
from contract.security.liars import EVIL, JOB, Liars, is_harmless, lines, process, status
from contract.security.test_hostile_answers import AT, JUNK, answer, changed
from contract.security.test_hostile_curves import CURVE
from unit.export.test_tensorboard import scalars
from unit.export.test_trace import check, refuse

FORMULA = f"=HYPERLINK(1){EVIL}"
MORE_JUNK = [*JUNK, FORMULA, math.nan, True]


def step(node: int, **more: Any) -> dict[str, Any]:
    about = {**AT, "node": node, "event": "step", "role": "trainer", "rank": node, "attempt": 1, "step": 5}
    return {**about, "pass": 0, "loss": 0.5, "samples": 3, "samples_per_s": 9.0, **more}


def log(node: int) -> dict[str, Any]:
    return {**step(node), "event": "log", "values": {"auc": 0.75, FORMULA: math.inf}, "weight": 2}


def exporting(node: int, request: dict[str, Any], events: Any = None, curve: Any = None) -> Iterator[bytes]:
    """Return the answer of an agent that is honest but for these events, or this curve."""
    if request["op"] == "events":
        return lines({"events": [step(node), log(node)] if events is None else events, "at": 9}, {"done": {}})
    if request["op"] == "curves":
        return lines(
            {"curves": [{**CURVE, "rank": node}] if curve is None else [curve]},
            {"done": {"left": {}, "at": 9, "now": AT["t"]}},
        )
    return answer(node, request)


def wrong_events() -> Iterator[list[Any]]:
    pserver = step(1, role="pserver", staleness=[[0, 1]], tables=[{"name": FORMULA, "rows": 1}], lost=1)
    for index, junk in enumerate(MORE_JUNK):
        for event in (step(1), log(1), pserver):
            yield from ([wrong] for wrong in itertools.islice(changed(event, junk), index % 12, None, 12))


def test_an_export_is_sound_whatever_events_a_node_sends(liars: Liars, tmp_path: Path) -> None:
    liars.answers["node0"] = lambda request: exporting(0, request)
    written = 0
    for number, events in enumerate(wrong_events()):
        to = ("csv", "tensorboard")[number % 2]
        liars.answers["node1"] = lambda request, events=events: exporting(1, request, events)
        code, out, err = liars.run("export", "--to", to, str(tmp_path / to))
        assert "Traceback" not in err, (events, err)
        assert code in (0, 3), (events, err)
        assert is_harmless(out + err)
        if to == "csv":
            text = (tmp_path / "csv" / "points.csv").read_text(encoding="utf-8")
            rows = list(csv.DictReader(text.splitlines()))
            assert is_harmless(text)
            assert not [cell for row in rows for cell in row.values() if cell[:1] in tuple("=+@")]
            assert [float(row["value"]) for row in rows if row["node"] == "0"] == [0.5, 9.0, 0.75, math.inf], (
                events,
                err,
            )
            assert {row["node"] + row["rank"] for row in rows} <= {"00", "11"}, "a node speaks for itself only"
        else:
            assert [value for *_, value in scalars(tmp_path / to / "trainer0")] == [0.5, 9.0, 0.75, math.inf]
            tags = [tag for path in (tmp_path / to).glob("*0") for tag, *_ in scalars(path)]
            assert all(map(is_harmless, tags))
        written += 1
    assert written > 25


def test_a_trace_is_sound_whatever_a_node_sends(liars: Liars, tmp_path: Path) -> None:
    liars.answers["node0"] = lambda request: exporting(0, request)
    for index, junk in enumerate((*JUNK, math.nan)):
        for wrong in itertools.islice(changed(CURVE, junk), index % 16, None, 16):
            liars.answers["node1"] = lambda request, wrong=wrong: exporting(1, request, curve=wrong)
            code, out, err = liars.run("export", "--to", "trace", str(tmp_path / "trace"))
            assert "Traceback" not in err, (wrong, err)
            assert code in (0, 3), (wrong, err)
            assert is_harmless(out + err)
            text = (tmp_path / "trace" / "trace.json").read_text(encoding="ascii")
            check(json.loads(text, parse_constant=refuse)["traceEvents"])


def test_metrics_can_be_parsed_whatever_a_node_says_about_its_processes(liars: Liars) -> None:
    settings = load(liars.conf, {})
    inventory = build(settings)
    figures = {"values": {"auc": 0.5}, "tables": [{"name": "w", "rows": 1}], "staleness": [[0, 1]], "lost": 1}
    honest = status(1, processes=[process("pserver", 1, **figures), process("trainer", 1, **figures)])
    liars.answers["node0"] = lambda request: lines({"done": status(0)})
    for index, junk in enumerate((*MORE_JUNK, {FORMULA: 1}, [{"name": FORMULA, "rows": 1}], [[2**62, 2**62]])):
        for wrong in itertools.islice(changed(honest, junk), index % 16, None, 16):
            liars.answers["node1"] = lambda request, wrong=wrong: lines({"done": wrong})
            registry = CollectorRegistry(auto_describe=False)
            with Cluster(settings, inventory, inventory.nodes) as cluster:
                reader = Reader(cluster, JOB)
                registry.register(Collector(reader.read, reader.secrets))  # type: ignore[arg-type]
                text = generate_latest(registry).decode()
            assert is_harmless(text)
            found = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
            series = [(one.name, *sorted(one.labels.items())) for one in found]
            assert len(set(series)) == len(series), (wrong, "a series comes twice")
            assert [one.value for one in found if one.name == "clusterctl_step" and one.labels["rank"] == "0"] == [
                35,
                35,
            ]
