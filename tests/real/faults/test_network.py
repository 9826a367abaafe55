"""Partitions, loss, delay and slow links: the faults a run survives, and that it survives on neither side of a cut."""

from __future__ import annotations

import subprocess
import time
from dataclasses import replace
from pathlib import Path

import pytest

from real.faults.laboratory import EVERYBODY, Laboratory
from real.faults.machines import Machine
from real.faults.runs import Model, assert_same, model_of, start

pytestmark = pytest.mark.faults


def test_a_run_waits_out_a_short_partition(lab: Laboratory, expected: Model) -> None:
    run = start(lab, NODE_GRACE_S=15)
    run.reach(30)
    assert streams_between(lab) > 0
    lab.cut("node3")
    time.sleep(7)  # the kernel would retry the old connections only after 12 s
    lab.heal_network()
    run.succeeds()
    assert run.events("lost") == []
    assert_same(model_of(lab, run.job), expected)


@pytest.mark.parametrize("direction", ["out", "in"])
def test_a_node_that_is_cut_off_for_too_long_is_lost_and_its_processes_run_elsewhere(
    lab: Laboratory, expected: Model, direction: str
) -> None:
    run = start(lab)
    run.reach(50)
    lab.rule(*(("node3", EVERYBODY) if direction == "out" else (EVERYBODY, "node3")), loss=1)
    run.event("moved", role="trainer", rank=2)
    lab.wait_for_silence(3)  # on the other side of the cut too
    lab.heal_network()
    run.event("rejoined", node=3)
    assert "node3 was lost" in run.succeeds()
    assert_same(model_of(lab, run.job), expected)


def test_a_lead_that_is_cut_off_ends_the_run_on_its_side_and_the_run_is_resumed_on_the_other_one(
    lab: Laboratory, expected: Model
) -> None:
    run = start(lab, COPIES=2)
    run.event("copied", node=0)
    lab.cut("node0")
    replace(run, run="0002").event("spawned", role="trainer", rank=2)
    lab.wait_for_silence(0)
    lab.heal_network()
    output = run.succeeds()
    assert "resuming it on node[1-3]" in output
    assert_same(model_of(lab, run.job), expected)


def test_bad_links_only_slow_a_run_down(lab: Laboratory, expected: Model) -> None:
    run = start(lab, NODE_GRACE_S=30)
    for step, weather in ((10, {"loss": 0.05}), (50, {"delay_s": 0.02}), (90, {"bytes_per_s": 2e6})):
        run.reach(step)
        lab.heal_network()
        lab.rule(EVERYBODY, EVERYBODY, **weather)
    run.succeeds()
    assert run.events("lost") == run.events("restarting") == []
    assert_same(model_of(lab, run.job), expected)


#: Where the lab's pservers listen for streams, from PORT+500 up. Supervisors listen at the top of PORT..PORT+999.
STREAM_PORTS = range(7_664, 8_064)
ESTABLISHED = "01"


def streams_between(lab: Laboratory) -> int:
    """Return the number of connections for streams that a machine of a run has."""
    lines = [line.split() for m in lab.machines for line in Path(f"/proc/{m.pid}/net/tcp").read_text().splitlines()[1:]]
    ports = [int(line[2].rpartition(":")[2], 16) for line in lines if line[3] == ESTABLISHED]
    return sum(port in STREAM_PORTS for port in ports)


def test_a_firewall_that_closes_the_ports_of_streams_does_not_affect_the_run(lab: Laboratory, expected: Model) -> None:
    ports = f"{STREAM_PORTS.start}:{STREAM_PORTS.stop - 1}"
    for machine in lab.machines:
        in_network(machine, "iptables", "-A", "INPUT", "-p", "tcp", "--dport", ports, "-j", "DROP")
    run = start(lab)
    run.reach(50)
    assert streams_between(lab) == 0
    run.succeeds()
    assert_same(model_of(lab, run.job), expected)
    for machine in lab.machines:
        in_network(machine, "iptables", "-D", "INPUT", "-p", "tcp", "--dport", ports, "-j", "DROP")


def in_network(machine: Machine, *argv: str) -> None:
    subprocess.run(["nsenter", "-t", str(machine.pid), "-n", *argv], check=True, capture_output=True)
