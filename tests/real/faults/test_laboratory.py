"""The faults of the laboratory work as described, as seen from the machines."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import pytest

from real.faults import storms
from real.faults.laboratory import EVERYBODY, Laboratory
from real.faults.machines import Machine
from support.processes import is_alive, wait_until

pytestmark = pytest.mark.faults
REACH = "import socket, sys; socket.create_connection((sys.argv[1], 22), timeout=float(sys.argv[2]))"
ANSWER = "import socket; s = socket.socket(2, 2); s.bind(('', 99)); b, a = s.recvfrom(9); s.sendto(b, a)"


def on(machine: Machine, *argv: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*machine.inside(), *argv], capture_output=True, text=True, timeout=180, check=False)


def reaches(lab: Laboratory, source: int, target: int, within_s: int = 30) -> bool:
    return on(lab.machines[source], "python3", "-c", REACH, lab.hosts[target], str(within_s)).returncode == 0


def is_cut_off(lab: Laboratory, source: int, target: int) -> bool:
    return not reaches(lab, source, target, within_s=1)


def test_machines_have_their_own_processes_names_and_networks(lab: Laboratory) -> None:
    names = {on(machine, "hostname").stdout for machine in lab.machines}
    assert names == {f"node{index}\n" for index in range(4)}
    assert "pytest" not in on(lab.machines[0], "cat", "/proc/1/cmdline").stdout
    assert reaches(lab, 0, 1)
    outside = on(lab.machines[0], "ip", "route", "get", "192.0.2.1")
    assert "unreachable" in outside.stderr, outside


def test_a_cut_affects_only_the_given_directions(lab: Laboratory) -> None:
    lab.cut("node1")
    assert is_cut_off(lab, 0, 1)
    assert is_cut_off(lab, 1, 0)
    assert reaches(lab, 0, 2)
    lab.heal_network()
    assert reaches(lab, 0, 1)
    lab.rule("node1", EVERYBODY, loss=1)  # its own frames are lost, those sent to it arrive
    with subprocess.Popen([*lab.machines[1].inside(), "python3", "-c", ANSWER]) as listener:
        send = "import socket, sys; socket.socket(2, 2).sendto(b'x', (sys.argv[1], 99))"
        on(lab.machines[0], "ip", "neigh", "replace", lab.hosts[1], "lladdr", "02:00:00:00:00:0c", "dev", "eth0")
        end = time.monotonic() + 60
        while listener.poll() is None and time.monotonic() < end:
            on(lab.machines[0], "python3", "-c", send, lab.hosts[1])
        heard = listener.poll()
        listener.kill()
    assert heard == 0
    assert is_cut_off(lab, 0, 1)


def test_a_link_can_be_slow_and_lossy(lab: Laboratory) -> None:
    def round_trip_ms() -> float:
        code = f"import time; t = time.perf_counter(); {REACH}; print(1000 * (time.perf_counter() - t))"
        return float(on(lab.machines[0], "python3", "-c", code, lab.hosts[1], "30").stdout)

    lab.rule("node0", "node1", delay_s=0.2)
    assert round_trip_ms() >= 200
    lab.heal_network()
    lab.rule("node0", "node1", bytes_per_s=1000)  # a SYN is 74 bytes
    assert round_trip_ms() >= 70


def test_a_machine_that_is_switched_off_has_no_process_and_keeps_its_disk(lab: Laboratory) -> None:
    machine = lab.machines[2]
    with subprocess.Popen([*machine.inside(), "sleep", "300"]) as sleeping:
        (lab.home(2) / "kept").write_text("here")
        assert wait_until(lambda: any("sleep 300" in proc.command for proc in machine.processes()))
        inside = [proc.pid for proc in machine.processes()]
        machine.power_off()
        assert not any(is_alive(pid) for pid in inside)
        assert is_cut_off(lab, 0, 2)
        sleeping.wait(180)
    lab.boot()
    assert reaches(lab, 0, 2)
    assert (lab.home(2) / "kept").read_text() == "here"
    (lab.home(2) / "kept").unlink()


def test_a_full_disk_accepts_no_more_data(lab: Laboratory) -> None:
    lab.machines[1].fill_disk()
    with pytest.raises(OSError, match="No space left"):
        (lab.home(1) / "more").write_bytes(bytes(5000))
    lab.machines[1].free_disk()
    (lab.home(1) / "more").write_bytes(bytes(5000))
    (lab.home(1) / "more").unlink()


def test_a_wrong_clock_applies_to_everything_that_ssh_starts(lab: Laboratory) -> None:
    machine = lab.machines[1]
    try:
        machine.set_clock(3600)
        times = [node["stdout"] for node in lab.ok("exec", "--json", "--", "date", "+%s").json()["nodes"]]
    finally:
        machine.set_clock(0)
    assert 3590 < float(times[1]) - float(times[0]) < 3660


@pytest.mark.parametrize("left", ["a file", "a port", "shared memory", "a process"])
def test_leftovers_of_a_program_are_detected(lab: Laboratory, left: str) -> None:
    machine = lab.machines[0]
    path = {"a file": lab.home(0).parent / "tmp/left", "shared memory": Path(f"/proc/{machine.pid}/root/dev/shm/left")}
    if left in path:
        path[left].write_text("x")
        assert [name.rpartition("/")[2] for name in machine.remains()] == ["left"]
        path[left].unlink()
        return
    code = "import socket; s = socket.create_server(('', 7164)); print('up', flush=True); s.accept()"
    code = code if left == "a port" else "import time; print('up', flush=True); time.sleep(300)"
    with subprocess.Popen([*machine.inside(), "python3", "-c", code], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert machine.remains() == (["port 7164"] if left == "a port" else [])
        (one,) = machine.processes()
        os.kill(one.pid, 9)


def test_a_storm_depends_only_on_its_seed() -> None:
    assert [storms.draw(f"7/{n}") for n in range(20)] == [storms.draw(f"7/{n}") for n in range(20)]
    drawn = [storms.draw(f"7/{n}") for n in range(200)]
    assert {fault.name for storm in drawn for fault in storm.faults} == {*storms.KINDS}
    assert len({(storm.mode, storm.patient) for storm in drawn}) == 4
    assert {storm.clock for storm in drawn} > {None, (0, 1), (0, -1)}
    assert storms.draw("7/0") != storms.draw("8/0")
