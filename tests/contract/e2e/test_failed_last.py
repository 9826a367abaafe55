"""`--only failed@last` selects exactly the nodes that the previous command failed on."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from clusterctl.cli import last_failed
from clusterctl.cli.console import ReportedError
from clusterctl.config import from_values
from clusterctl.errors import ClusterctlError, JobFailedError, NodeError, RefusedError, UsageError
from support.site import Site

NODE3 = NodeError("no", node="node3").to_json()
FAILS_ON_2 = "case $HOME in *node2*) exit 7;; esac"


def selected(site: Site, *args: str) -> list[int]:
    document = site.ok("exec", "--only", *(args or ("failed@last",)), "--json", "--", "true").json()
    return [node["node"] for node in document["nodes"]]


@pytest.mark.nodes(3)
def test_failed_last_selects_the_nodes_that_the_previous_command_failed_on(site: Site) -> None:
    """Failed commands and unreachable nodes count. A usage error keeps the record; a success everywhere clears it."""
    assert "no node failed last time" in site.run("exec", "--only", "failed@last", "--", "true").err
    assert site.run("exec", "--", FAILS_ON_2).code == 3
    assert site.run("exec", "--only", "nobody", "--", "true").code == 2
    site.conf(HOSTS=site.hosts[1:])  # other hosts have a record of their own
    assert site.run("exec", "--only", "failed@last", "--", "true").code == 2
    site.conf()
    assert selected(site) == [2]
    nothing = site.run("exec", "--only", "failed@last", "--", "true")
    assert (nothing.code, "no node failed last time" in nothing.err) == (2, True)
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        site.conf(HOSTS=[f"127.0.0.1:{sock.getsockname()[1]}", *site.hosts[1:]])
        failed = site.run("exec", "--json", "--", FAILS_ON_2)
        assert [node["node"] for node in failed.json()["error"]["details"]["nodes"]] == ["node0", "node2"]
        again = site.run("exec", "--only", "failed@last", "--json", "--", "true")
        assert (again.code, [node["node"] for node in again.json()["nodes"]]) == (3, [0, 2])
        assert site.run("jobs", "--only", "failed@last").code == 3


@pytest.mark.parametrize(
    ("error", "failed"),
    [
        (None, []),
        (JobFailedError("the job failed", details={"nodes": [1]}), []),
        (ReportedError(JobFailedError("the job failed")), []),
        (NodeError("no", node="node3"), [3]),
        (ReportedError(RefusedError("no", details={"nodes": [NODE3, {"node": "node1"}]})), [1, 3]),
        (RefusedError("the host key has changed", node="node2", details={"nodes": [2, 5]}), [2, 5]),
        (UsageError("ambiguous", node="node0"), None),
        (ReportedError(UsageError("no job", details={"nodes": [NODE3]})), None),
        (ClusterctlError("the disk here is full"), None),
    ],
)
def test_the_failed_nodes_are_taken_from_the_error_of_a_command(
    error: ClusterctlError | None, failed: list[int] | None
) -> None:
    assert last_failed.failed_nodes(error) == failed


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"nodes": 3}', '{"nodes": null}', "\xff"])
def test_a_damaged_record_is_ignored(tmp_path: Path, text: str) -> None:
    path = last_failed.record_path(tmp_path, from_values({"HOSTS": ["a", "b"]}))
    path.parent.mkdir()
    path.write_text(text, encoding="latin-1")
    assert last_failed.read(path) == ()
    last_failed.write(path, [1, 0])
    assert last_failed.read(path) == (0, 1)
