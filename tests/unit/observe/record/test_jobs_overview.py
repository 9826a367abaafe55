"""The jobs of all nodes with the figures of their runs: means, best values, and odd numbers."""

from __future__ import annotations

import math
from typing import Any

import pytest

from clusterctl.cluster import NodeOutcome
from clusterctl.config import from_values
from clusterctl.inventory import build
from clusterctl.observe.record.jobs import higher_is_better, jobs

JOB = "JOB20261121-081530"
RECORD = {"workspace": "w", "content": "c" * 40, "files": 1, "bytes": 2, "t": 1.7e9}
RUN = {"run": "0001", "state": "succeeded", "started": 1.7e9, "members": [0, 1], "left_out": []}


class Asked:
    """A cluster of two nodes, each with one run of one job."""

    def __init__(self, *views: dict[str, Any], names: tuple[str, str] = (JOB, JOB)) -> None:
        self.inventory = build(from_values({"HOSTS": ["10.0.0.1", "10.0.0.2"]}))
        self.views, self.names = views, names

    def ask(self, _: object) -> list[NodeOutcome[Any]]:
        answers = [
            {"jobs": [{"job": name, "record": RECORD, "runs": [{**RUN, **view}]}]}
            for name, view in zip(self.names, self.views, strict=False)
        ]
        return [
            NodeOutcome(node, answer, None, 0.0) for node, answer in zip(self.inventory.nodes, answers, strict=False)
        ]


def listed(*views: dict[str, Any]) -> dict[str, Any]:
    cluster: Any = Asked(*views)
    (job,), errors = jobs(cluster)
    assert errors == []
    (run,) = job.to_json()["runs"]
    return dict(run)


def trainer(loss: Any, **metrics: Any) -> dict[str, Any]:
    return {"loss": loss, "metrics": metrics}


def test_figures_are_means_of_all_trainers_and_the_lead_has_the_rest() -> None:
    lead = {"seconds": 7.5, "name": "lr-0.1", "arguments": ["--lr", "1", "--token", "abc", "secret-value"]}
    lead |= {"env": {"PLACE": "secret-value"}, "trainers": [trainer(1.0, acc=[0.2, 0.1, 0.6], rmse=[3.0, 1.0, 9.0])]}
    other = {"seconds": 99.0, "trainers": [trainer(2.0, acc=[0.4, 0.1, 0.8]), trainer(6.0)]}
    assert listed(lead, other) == {
        **{"run": "0001", "state": "succeeded", "name": "lr-0.1", "seconds": 7.5, "loss": 3.0},
        "arguments": ["--lr", "1", "--token", "[hidden]", "$PLACE"],
        "metrics": {
            "acc": {"last": pytest.approx(0.3), "best": pytest.approx(0.7)},
            "rmse": {"last": 3.0, "best": 1.0},
        },
    }


@pytest.mark.parametrize("names", [(JOB, "JOB20261121-081531"), ("JOB20261121-081531", JOB)])
def test_the_newest_job_comes_first_whichever_node_has_it(names: tuple[str, str]) -> None:
    cluster: Any = Asked({}, {}, names=names)
    assert [job.job for job in jobs(cluster)[0]] == ["JOB20261121-081531", JOB]


def test_the_metric_of_keep_best_follows_that_setting() -> None:
    best = {"keep_best": {"name": "acc", "direction": "min"}}
    assert listed({**best, "trainers": [trainer(1.0, acc=[2.0, 1.0, 3.0])]})["metrics"]["acc"]["best"] == 1.0


def test_odd_numbers_neither_fail_nor_count_as_best() -> None:
    rows = [trainer(math.inf, a=[math.nan, None, None], huge=[1e308, 1e308, 1e308]), trainer(-math.inf)]
    found = listed({"trainers": rows}, {"trainers": [trainer("x", a=[1.0, 1.0, 1.0], huge=[1e308, 1e308, 1e308])]})
    assert math.isnan(found["loss"])
    assert math.isnan(found["metrics"]["a"]["last"])
    assert found["metrics"]["a"]["best"] is None
    assert found["metrics"]["huge"]["last"] == 1e308
    assert "metrics" not in listed({"trainers": [{"metrics": {"a": [1.0]}}, {"metrics": 7}, {}]})


@pytest.mark.parametrize(
    "name",
    ["val_acc", "Accuracy", "roc-auc", "F1-score", "mAP50", "ndcg@10", "top1acc"],
)
def test_metrics_that_are_to_grow(name: str) -> None:
    assert higher_is_better(name)


@pytest.mark.parametrize("name", ["loss", "f1_loss", "score_error", "accelerations"])
def test_metrics_that_are_to_shrink(name: str) -> None:
    assert not higher_is_better(name)
