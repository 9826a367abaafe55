"""Two fabricated runs compared: every section, nodes that did not answer, and secrets."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from clusterctl.api.diff import document_of
from clusterctl.observe.record.compare import RunDiff, compare, options, packages
from clusterctl.observe.record.contents import Contents, File, Tree
from clusterctl.observe.record.model import RunRecord
from clusterctl.observe.record.secrets import Redactor
from support.records import METRIC, RECORDS, failed, silent_node, succeeded

NODES = range(4)
VERSIONS = {"python": "3.11.2", "numpy": "1.26.4"}


def contents(trees: dict[int, str] | None = None, **more: Any) -> Contents:
    return Contents(
        trees if trees is not None else dict.fromkeys(NODES, "t"), dict.fromkeys(NODES, VERSIONS), {}, **more
    )


def compared(
    a: RunRecord, b: RunRecord, of_a: Contents | None = None, of_b: Contents | None = None, /, **trees: Tree
) -> RunDiff:
    return compare((a, b), (of_a or contents(), of_b or contents()), trees)


def different(pairs: Any) -> dict[str, tuple[Any, Any]]:
    return {pair.name: (pair.a, pair.b) for pair in pairs if not pair.same}


@pytest.mark.parametrize("name", [name for name in RECORDS if name != "large"])
def test_a_run_does_not_differ_from_itself(name: str) -> None:
    record = RECORDS[name]()
    document = document_of(compared(record, record))
    sections = {key: value for key, value in document.items() if isinstance(value, list)}
    assert set(sections) == {*("facts", "figures", "settings", "arguments", "env", "packages", "files", "metrics")}
    assert [row for rows in sections.values() for row in rows if not row["same"]] == []
    assert json.dumps(document, allow_nan=False)


def test_facts_and_figures_are_those_of_the_whole_run() -> None:
    a, b = succeeded(), failed()
    b.processes[5].figures["step"] = 1200
    found = compared(a, replace(b, workspace="other"))
    facts = different(found.facts)
    assert facts["outcome"] == ("succeeded", "failed")
    assert facts["workspace"] == (a.workspace, "other")
    assert document_of(found)["a"]["cause"] is None
    assert document_of(found)["b"]["cause"] == (b.cause and b.cause.headline)
    assert "nodes" not in facts
    figures = different(found.figures)
    assert figures["duration_s"] == (1020.0, 700.0)
    assert figures["restarts"] == (0, 1)
    assert figures["step"] == (1000, 1200)
    throughput = {pair.name: pair for pair in found.figures}["samples_per_s"]
    assert throughput.a == pytest.approx(4000, rel=0.02), "the sum of four trainers"


def test_settings_arguments_and_metrics_are_compared_by_name() -> None:
    a = replace(succeeded(), settings={"SEED": "0", "MODE": "sync"}, arguments=("--lr", "0.1", "data"))
    b = replace(succeeded(), settings={"SEED": "1", "MODE": "sync", "KEEP": "3"}, arguments=("--lr=0.2", "data"))
    b = replace(b, curves=tuple(curve for curve in b.curves if curve.name != METRIC))
    found = compared(a, b)
    assert different(found.settings) == {"SEED": ("0", "1"), "KEEP": (None, "3")}
    assert different(found.arguments) == {"--lr": ("0.1", "0.2")}
    metric = different(found.metrics)
    assert list(metric) == [METRIC]
    assert metric[METRIC][0].lowest < metric[METRIC][0].final <= metric[METRIC][0].highest
    assert metric[METRIC][1] is None


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ((), {}),
        (("--a=1", "--b", "2", "-v"), {"--a": "1", "--b": "2", "-v": ""}),
        (("--lr", "-0.5", "-.5", "-"), {"--lr": "-0.5", "(words)": "-.5 -"}),
        (("x", "--a", "--b", "y", "z"), {"(words)": "x z", "--a": "", "--b": "y"}),
        (("--a=1", "--a=2", "--c=k=v", "--e="), {"--a": "1 2", "--c": "k=v", "--e": ""}),
    ],
    ids=["none", "options", "negative numbers", "words", "repeated"],
)
def test_arguments_are_read_as_options(words: tuple[str, ...], found: dict[str, str]) -> None:
    assert options(words) == found


def test_a_package_has_one_version_or_names_its_nodes() -> None:
    by_node = {0: {"numpy": "1.26", "torch": "2"}, 1: {"numpy": "1.26"}, 2: {"numpy": "2.0"}}
    assert packages(by_node) == {"numpy": "1.26 (node[0,1]), 2.0 (node2)", "torch": "2 (node0)"}
    assert packages(dict.fromkeys(NODES, VERSIONS)) == dict(sorted(VERSIONS.items()))


def test_files_are_compared_by_the_contents_that_they_have_on_all_nodes() -> None:
    one, two, more = File(1, "1" * 64), File(1, "2" * 64), File(30, "3" * 64)
    trees = {
        "a0": {"train.py": one, "data": one, "gone": one},
        "a1": {"train.py": one, "data": two},
        "b0": {"train.py": more, "data": two, "new": more},
        "b1": {"train.py": more, "data": one},
    }
    found = compared(succeeded(), succeeded(), contents({0: "a0", 1: "a1"}), contents({0: "b0", 1: "b1"}), **trees)
    assert different(found.files) == {"train.py": ((one,), (more,)), "gone": ((one,), None), "new": (None, (more,))}


def test_a_node_that_answered_for_one_run_only_counts_for_neither() -> None:
    trees = {"a": {"shard": File(1, "1")}, "b": {"shard": File(2, "2")}, "c": {"shard": File(3, "3")}}
    of_a = Contents({0: "a", 1: "b", 2: "c"}, {n: {"numpy": str(n)} for n in range(3)}, {})
    of_b = Contents({0: "a", 1: "b"}, {n: {"numpy": str(n)} for n in range(2)}, {})
    found = compared(silent_node(), silent_node(), of_a, of_b, **trees)
    assert (different(found.files), different(found.packages)) == ({}, {})


def test_values_of_env_are_compared_and_never_shown() -> None:
    of_a, of_b = {"API": "hush-hush", "SAME": "same-same", "OLD": "x"}, {"API": "other-value", "SAME": "same-same"}
    a = replace(succeeded(), env=tuple(of_a), secrets=Redactor(of_a), settings={"NOTE": "other-value"})
    b = replace(succeeded(), env=tuple(of_b), secrets=Redactor(of_b), arguments=("--say", "hush-hush"))
    tree = {"logs/hush-hush": File(1, "1")}
    found = compared(a, b, contents({0: "a"}), contents({0: "b"}), a={}, b=tree)
    assert different(found.env) == {"API": (True, True), "OLD": (True, False)}
    document = json.dumps(document_of(found))
    assert [value for value in ("hush-hush", "other-value", "same-same") if value in document] == []
    assert different(found.arguments)["--say"] == (None, "$API")
