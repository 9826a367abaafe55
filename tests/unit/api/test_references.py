"""The run that a user names, with and without `--run`."""

from __future__ import annotations

from typing import Any

import pytest

from clusterctl.cluster import Cluster
from clusterctl.config import from_values
from clusterctl.errors import UsageError
from clusterctl.inventory import build
from clusterctl.observe.record.references import Reference, run_of

JOB = "JOB20261121-081530"
SETTINGS = from_values({"HOSTS": ["a"]})
CLUSTER: Any = Cluster(SETTINGS, build(SETTINGS), [])


@pytest.mark.parametrize(
    ("text", "number", "run"),
    [(JOB, None, None), (f"{JOB}/1", None, "0001"), (JOB, 2, "0002"), (f"{JOB}/2", 2, "0002")],
)
def test_a_run_is_named_by_its_number_its_reference_or_both(text: str, number: int | None, run: str | None) -> None:
    assert run_of(CLUSTER, text, number) == Reference(JOB, run)


@pytest.mark.parametrize("number", [0, 2, 11])
def test_a_reference_to_another_run_than_the_number_is_a_usage_error(number: int) -> None:
    with pytest.raises(UsageError, match=f"{JOB}/1 is run 1 of {JOB}, not run {number}") as caught:
        run_of(CLUSTER, f"{JOB}/1", number)
    assert caught.value.hint == f"leave out --run {number}, or name the job: {JOB}"
