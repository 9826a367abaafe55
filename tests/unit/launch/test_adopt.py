"""The names that `start --adopt` accepts, and the comparison of the files of all nodes."""

from __future__ import annotations

import sys

import pytest

from clusterctl.cluster import Cluster
from clusterctl.config import from_values
from clusterctl.errors import NodeError, RefusedError
from clusterctl.inventory import build
from clusterctl.launch import adopt
from clusterctl.launch.adopt import AdoptedFiles


def test_files_with_other_contents_and_files_that_some_nodes_lack_are_told_apart() -> None:
    comparison = AdoptedFiles()
    comparison.add([("train.py", "a"), ("data", "1"), ("only", "x")])
    comparison.add([("train.py", "a"), ("data", "2"), ("more", "y")])
    comparison.add([("train.py", "a"), ("data", "1"), ("more", "z")])
    assert comparison.differ == ("data", "more")
    assert comparison.missing == ("more", "only")


def test_a_node_that_fails_does_not_count() -> None:
    comparison = AdoptedFiles()
    failing = comparison.begin()
    comparison.put(failing, [("train.py", "other"), ("only", "x"), ("data", "1")])
    comparison.add([("train.py", "a"), ("data", "1")])
    comparison.add([("train.py", "a"), ("data", "2")])
    assert (comparison.differ, comparison.missing) == (("data",), ())


def test_the_files_of_all_nodes_have_a_bound_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that are on several nodes count once, and long targets of links do not."""
    monkeypatch.setattr(sys.modules[AdoptedFiles.__module__], "MOST_BYTES", 1 << 20)
    comparison = AdoptedFiles()
    for _ in range(20):
        comparison.add((f"{number:0200}", "x" * 4000) for number in range(2000))
    liar = comparison.begin()
    with pytest.raises(NodeError, match="its list of files and those of other nodes take over 1 MB of memory"):
        comparison.put(liar, ((f"{number:01000}", "") for number in range(1000)))
    assert (len(comparison.missing), comparison.differ) == (0, ())
    other = comparison.begin()
    with pytest.raises(NodeError):
        comparison.put(other, ((f"{0:0200}", str(number)) for number in range(10_000)))


@pytest.mark.parametrize(
    ("ref", "words"),
    [
        ("/data/model", "/data/model is not directly below ROOT_DIR, which is ~/clusterctl"),
        ("~/clusterctl/deep/model", "is not directly below ROOT_DIR"),
        ("JOB20261121-110054", "is named like a job of clusterctl dispatch"),
        ("-x", "cannot be the name of a job"),
        ("my model", "cannot be the name of a job"),
    ],
)
def test_a_directory_that_cannot_be_a_job_is_refused_before_any_node_is_asked(ref: str, words: str) -> None:
    settings = from_values({"HOSTS": ["10.0.0.1"]})
    inventory = build(settings)
    with Cluster(settings, inventory, inventory.nodes) as cluster:
        with pytest.raises(RefusedError, match=words) as caught:
            adopt(cluster, ref)
        assert not cluster.asked
    assert caught.value.hint
