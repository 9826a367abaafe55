"""Findings derived from the facts of nodes, folded, each with a hint; and the choice of who connects to whom."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from clusterctl.check import findings
from clusterctl.check.connectivity import failed, peers
from clusterctl.check.findings import STOPS, WARNS, Finding, Skew, folded
from clusterctl.config import Host, from_values
from clusterctl.documents.nodes import FailedPair
from clusterctl.inventory import build

GB = 10**9


def facts(**changes: Any) -> dict[str, Any]:
    return {
        "versions": {"python": "3.11.2", "numpy": "1.24.2", "pyzmq": "24.0.1"},
        "system": {"machine": "x86_64", "simd": ["avx2"], "libc": "glibc 2.36", "kernel": "6.1", "cpu": "one"},
        "disk": {"free": 50 * GB, "total": 100 * GB, "inodes_free": 10**6, "read_only": False},
        "open_files": {"soft": 1024, "hard": 4096},
        "memory": {"total": 8 * GB, "available": 4 * GB},
        "address": "10.0.0.1",
        "busy": [],
        **changes,
    }


def test_a_shim_is_named_with_the_interpreter_behind_it_if_it_is_slow() -> None:
    times = [None, 0.049, 0.31, 0.34]
    by_node = {
        node: facts(shim=seconds and {"program": "/opt/python3", "seconds": seconds})
        for node, seconds in enumerate(times)
    }
    [found] = folded(findings.shims(by_node, "python3"))
    assert (found.check, found.blocks, found.nodes) == ("python", WARNS, (2, 3))
    assert found.message == "PYTHON = 'python3' is a script that adds 0.3 s to every call of the node"
    assert found.hint == "set PYTHON = '/opt/python3' in conf.py"


def disk(**changes: Any) -> dict[str, Any]:
    return {**facts()["disk"], **changes}


def quick(by_node: dict[int, dict[str, Any]]) -> list[Finding]:
    return findings.quick(by_node, {}, members=4, open_files=None)


def test_healthy_identical_nodes_give_no_finding() -> None:
    assert quick({0: facts(), 1: facts()}) == []


def test_nodes_that_cannot_seal_streams_are_named_where_streams_would_be_sealed() -> None:
    versions = facts()["versions"]
    seals = [{**versions, "cryptography": version} for version in ("47.0.0", "50.0.2")]
    cannot = [versions, *({**versions, "cryptography": version} for version in ("38.0.4", "x", "9" * 5_000, "4\u00b2"))]
    by_node = {node: facts(versions=one) for node, one in enumerate([*seals, *cannot, {"python": "3.11.2"}])}
    assert quick(by_node) == []
    [found] = findings.quick(by_node, {}, members=4, open_files=None, seals=True)
    assert (found.check, found.blocks, found.nodes) == ("cryptography", WARNS, (2, 3, 4, 5, 6))
    assert "stay with CURVE" in found.message


# Clocks.


def clocks(*ahead: float, error: float = 0.01) -> list[Finding]:
    return list(findings.clocks({node: Skew(seconds, error) for node, seconds in enumerate(ahead)}))


@pytest.mark.parametrize(("ahead", "offset"), [(2.1, "2 s ahead"), (-41, "41 s behind"), (86_400, "24.0 hours ahead")])
def test_a_clock_that_is_off_by_two_seconds_is_reported(ahead: float, offset: str) -> None:
    (finding,) = clocks(0.0, ahead, 0.1, -0.1)
    assert (finding.nodes, finding.message, finding.blocks) == ((1,), f"clock is {offset}", WARNS)
    assert "chronyc" in str(finding.hint)


def test_an_offset_within_the_round_trip_error_is_not_reported() -> None:
    assert clocks(0, 2.5, 0, error=0.6) == []
    assert clocks(2.5, 2.6, 2.4, error=0.7) == []  # all answers were late, as when many nodes share two cores
    assert clocks(0, 1.9, 0) == []
    asked, answered = 100.0, 103.0
    assert Skew.measure(asked, 104.0, answered) == Skew(2.5, 1.5)


def test_when_all_nodes_agree_this_machine_is_blamed() -> None:
    (finding,) = clocks(60.1, 59.9, 60.0)
    assert (finding.nodes, finding.message) == ((), "the clock of this machine is 60 s behind the nodes'")
    ours, odd = clocks(60, 60, 60, 0)
    assert ours.nodes == ()
    assert (odd.nodes, odd.message) == ((3,), "clock is 60 s behind")


# Disks and limits.


@pytest.mark.parametrize(
    ("changes", "blocks"),
    [
        ({"read_only": True}, STOPS),
        ({"free": 0}, STOPS),
        ({"free": GB // 2}, WARNS),
        ({"inodes_free": 10}, WARNS),
    ],
)
def test_a_full_disk_blocks_and_a_nearly_full_disk_warns(changes: dict[str, Any], blocks: bool) -> None:
    (finding,) = quick({0: facts(), 1: facts(disk=disk(**changes))})
    assert (finding.check, finding.blocks, finding.nodes) == ("disk", blocks, (1,))
    assert "ROOT_DIR" in f"{finding.message} {finding.hint}"


def test_the_open_files_limit_must_suffice_for_the_size_of_the_job() -> None:
    by_node = {0: facts()}
    assert findings.quick(by_node, {}, members=480, open_files=None) == []
    (finding,) = findings.quick(by_node, {}, members=481, open_files=None)
    assert "1,024" in finding.message
    assert findings.quick(by_node, {}, members=481, open_files=4096) == []
    (finding,) = findings.quick(by_node, {}, members=1, open_files=4097)
    assert finding.blocks == STOPS


# Versions.


def test_a_version_mismatch_lists_all_groups_and_blames_the_minority() -> None:
    other = {"python": "3.11.2", "numpy": "2.0.0", "pyzmq": "24.0.1"}
    (finding,) = quick({0: facts(versions=other), 1: facts(), 2: facts(), 3: facts()})
    assert finding.nodes == (0,)
    assert finding.message == "numpy differs: 1.24.2 on nodes 1-3; 2.0.0 on node 0"


def test_cpus_with_different_instruction_sets_are_reported() -> None:
    newer = {**facts()["system"], "simd": ["avx2", "avx512f"]}
    (finding,) = quick({0: facts(), 1: facts(system=newer)})
    assert "avx2 on node 0; avx2+avx512f on node 1" in finding.message


# Folding.


def test_identical_findings_are_folded_and_blocking_ones_come_first() -> None:
    warn, stop = (Finding("disk", blocks, (), "the disk of ROOT_DIR is full", None) for blocks in (WARNS, STOPS))
    many = [Finding(f.check, f.blocks, (node,), f.message) for node in (3, 1, 2) for f in (warn, stop)]
    assert [(f.blocks, f.nodes) for f in folded(many)] == [(STOPS, (1, 2, 3)), (WARNS, (1, 2, 3))]


def test_a_busy_port_names_its_holder_and_holders_of_the_same_name_are_folded() -> None:
    def holder(pid: int | None, name: str | None) -> dict[str, Any]:
        return facts(busy=[{"port": 7164, "pid": pid, "name": name, "uid": 33}])

    (one,) = findings.busy_ports({0: facts(), 1: holder(812, "nginx")})
    assert (one.nodes, one.message) == ((1,), "port 7164 is in use by pid 812 (nginx)")
    (two,) = findings.busy_ports({0: holder(811, "nginx"), 1: holder(812, "nginx")})
    assert (two.nodes, two.message) == ((0, 1), "port 7164 is in use by nginx")
    (hidden,) = findings.busy_ports({0: holder(None, None)})
    assert "another account (uid 33)" in hidden.message


def test_a_loopback_address_among_others_blocks() -> None:
    assert list(findings.addresses({0: facts(address="127.0.0.1"), 1: facts(address="::1")})) == []
    (finding,) = findings.addresses({0: facts(), 1: facts(address="127.0.0.1")})
    assert (finding.nodes, finding.blocks) == ((1,), STOPS)


# Pairs.


def test_with_up_to_32_nodes_every_node_tries_every_other() -> None:
    for count in (1, 2, 32):
        assert all(peers(node, range(count)) == [n for n in range(count) if n != node] for node in range(count))


def test_with_more_nodes_each_tries_eight_including_the_lead_and_its_neighbour_and_all_are_tried() -> None:
    chosen = {node: peers(node, range(256)) for node in range(256)}
    assert chosen == {node: peers(node, range(256)) for node in range(256)}
    assert {len(set(others) - {node}) for node, others in chosen.items()} == {8}
    for node, others in chosen.items():
        assert (node + 1) % 256 in others
        assert 0 in others or node == 0
    tried = Counter(other for others in chosen.values() for other in others)
    assert set(tried) == set(range(256))
    assert max(count for other, count in tried.items() if other) < 32


def failure(source: int, target: int, outcome: str = "silent") -> FailedPair:
    return FailedPair(source, target, f"10.0.0.{target}", 7164, outcome)


def test_a_node_that_nobody_can_reach_is_one_finding() -> None:
    (finding,) = failed([failure(source, 3) for source in range(3)], 7164)
    assert (finding.nodes, finding.blocks) == ((3,), STOPS)
    assert finding.message == "does not respond at 10.0.0.3:7164, tried from nodes 0-2"
    assert "firewall" in str(finding.hint)
    assert "7164-8163" in str(finding.hint)


def test_nodes_that_cannot_reach_each_other_are_one_finding() -> None:
    pairs = [failure(a, b) for a in range(16) for b in range(16) if a != b]
    (finding,) = failed(pairs, 7164)
    assert finding.nodes == tuple(range(16))
    assert "TCP 7164" in finding.message
    assert len({f.check for f in failed([*pairs, failure(20, 21, "refused")], 7164)}) == 1
    assert len(list(failed([*pairs, failure(20, 21, "refused")], 7164))) == 2


def test_leftover_processes_are_one_finding_per_job_with_pids_and_a_hint() -> None:
    def node_with(*pids: int) -> dict[str, Any]:
        return facts(leftovers=[{"job": "JOB1", "pids": list(pids)}] if pids else [], half_dispatched=[])

    (alone,) = findings.remains({0: node_with(), 1: node_with(12, 13)})
    assert (alone.nodes, alone.hint) == ((1,), "clusterctl stop JOB1")
    assert alone.message == "2 processes of JOB1 left by a dead supervisor: pid 12, 13"
    (several,) = findings.remains({0: node_with(7), 2: node_with(8)})
    assert several.nodes == (0, 2)
    assert several.message.endswith("pid 7 on node 0; pid 8 on node 2")
    (many,) = findings.remains({node: node_with(node + 1) for node in range(9)})
    assert many.message.endswith("pid 8 on node 7; ...")


def test_carriers_that_do_not_encrypt_are_named() -> None:
    hosts = ["a", Host("b", via=("srun", "-u", "-w", "{host}")), Host("c", via=("/opt/bin/mpirun", "-H", "{host}"))]
    found = findings.folded(findings.in_the_clear(build(from_values({"HOSTS": hosts})).nodes))
    assert [(one.check, one.blocks, one.nodes) for one in found] == [
        ("carrier", WARNS, (1,)),
        ("carrier", WARNS, (2,)),
    ]
    assert found[0].message == "srun does not encrypt what it carries, and a run's keys pass through it"
