"""Losing the control machine or its connections: the job keeps running, and nothing is missed on return."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from contract.e2e.programs import LEAVE, READY, SLEEP
from support.processes import descendants, kill_all, wait_until
from support.site import Site
from support.wires import wires_to

pytestmark = pytest.mark.nodes(1)

LINES = 4000
ONE_EACH = {"PSERVERS": 1, "TRAINERS": 1, "RESTARTS": 3}
# Two thousand lines a second. Killed halfway; its successor writes the rest, the last lines once the file `go` exists.
TALKATIVE = f"""
import os, signal, sys, time
{READY}
attempt = int(os.environ["CLUSTERCTL_ATTEMPT"])
half = {LINES} // 2
for n in range(half if attempt > 1 else 0, {LINES}):
    if attempt == 1 and n == half:
        sys.stdout.flush()
        os.kill(os.getpid(), signal.SIGKILL)
    sys.stdout.write(f"line {{n}}\\n")
    if n % 20 == 19:
        sys.stdout.flush()
        time.sleep(0.01)
    while n == 3800 and not os.path.exists("go"):
        time.sleep(0.01)
{LEAVE}
"""
UNTIL_RELEASED = f"""
import os, time
{READY}
print("begun", flush=True)
while not os.path.exists("go"):
    time.sleep(0.01)
for n in range(3000):
    print("line", n)
{LEAVE}
"""


def numbers(text: str) -> list[int]:
    return [int(number) for number in re.findall(r"trainer0@node\d +line (\d+)$", text, re.MULTILINE)]


@contextlib.contextmanager
def breakable(site: Site) -> Iterator[Callable[[], None]]:
    """Yield a function that breaks every connection to the nodes: it kills sshd sessions, or resets relayed ones."""
    if not (site.nodes_directory / "nodes").is_dir():
        yield lambda: kill_sessions(site)
        return
    ports = [int(host.rpartition(":")[2]) for host in site.hosts]
    with wires_to(ports) as wires:
        known = site.paths["KNOWN_HOSTS"].read_text()
        for port, wire in zip(ports, wires, strict=True):
            known = known.replace(f"]:{port} ", f"]:{wire.port} ")
        (site.directory / "known_hosts").write_text(known)
        hosts = [f"{host.rpartition(':')[0]}:{wire.port}" for host, wire in zip(site.hosts, wires, strict=True)]
        site.conf(**ONE_EACH, HOSTS=hosts, KNOWN_HOSTS=site.directory / "known_hosts")
        yield lambda: [wire.cut() for wire in wires] and None


def kill_sessions(site: Site) -> None:
    """Kill every sshd process except the listening ones."""
    configs = [os.fsencode(site.nodes_directory / f"node{node}/sshd_config") for node in range(len(site.hosts))]
    commands = {int(path.name): command_of(int(path.name)) for path in Path("/proc").iterdir() if path.name.isdigit()}
    for daemon in [pid for pid, command in commands.items() if any(config in command for config in configs)]:
        kill_all(pid for pid in descendants(daemon) if command_of(pid).startswith(b"sshd"))


def command_of(pid: int) -> bytes:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


def job_of(starting: subprocess.Popen[str], until: str) -> str:
    """Read the output of a start up to this text and return the job's id."""
    assert starting.stdout is not None
    output = ""
    for line in starting.stdout:
        output += line
        if until in line:
            break
    match = re.search(r"JOB\d+-\d+(-\d+)?", output)
    assert match, output
    return match[0]


@pytest.mark.slow
def test_followers_that_lose_their_connections_resume_without_gap_or_repeat(any_site: Site) -> None:
    """An attached start and `logs -f`, both cut off twice, once around the restart of the trainer.

    Each cut waits until both are back and have read as far, since before that there is no connection to cut.
    """
    site = any_site
    site.conf(**ONE_EACH)
    package = site.workspace(TALKATIVE)
    with breakable(site) as break_it, site.popen("start", "--job_dispatch_package", str(package)) as starting:
        job = job_of(starting, "line 10\n")
        with site.popen("logs", "-f", job, "--role", "trainer") as following:
            logged: list[str] = []
            reader = threading.Thread(target=lambda: logged.extend(following.stdout or ()))
            reader.start()
            assert starting.stdout is not None
            output = ""
            cuts, back = [LINES // 2 - 10, 3000], 0
            for line in starting.stdout:
                output += line
                if "node0 is back" in line:
                    back += 1
                    if back == 2:
                        (site.job_dir(job, 0) / "go").touch()
                elif cuts and back == 2 - len(cuts) and any(number >= cuts[0] for number in numbers(line)):
                    assert wait_until(lambda: max(numbers("".join(logged[-9:])), default=0) >= cuts[0])
                    break_it()
                    del cuts[0]
            err = starting.communicate(timeout=180)[1]
            assert starting.returncode == 0, err
            reader.join(180)
    log = (site.job_dir(job, 0) / "log/train.log").read_text()
    assert log == "".join(f"line {n}\n" for n in range(LINES))
    assert numbers("".join(logged)) == list(range(LINES))
    assert numbers(output) == list(range(11, LINES))
    assert len(re.findall(r"node0: lost the connection.*; retrying", output)) == output.count("node0 is back") == 2
    assert "not shown" not in output


def test_an_attached_start_that_gets_a_term_detaches_and_says_so(site: Site) -> None:
    with site.popen("start", "--job_dispatch_package", str(site.workspace(SLEEP))) as starting:
        assert starting.stdout is not None
        assert starting.stderr is not None
        began = next(line for line in starting.stdout if "supervisors are up" in line)
        job = re.search(r"JOB[\d-]+", began)[0]  # type: ignore[index]
        next(line for line in starting.stdout if "all processes are running" in line)
        starting.terminate()
        assert f"detached from {job}, which continues; to follow it: clusterctl logs -f {job}" in starting.stdout.read()
        assert starting.wait(180) == 128 + signal.SIGTERM
        assert starting.stderr.read() == ""
    assert site.status(job)["state"] == "running"
    site.ok("stop", job)


@pytest.mark.slow
def test_a_control_machine_that_slept_through_the_end_reports_everything(site: Site) -> None:
    with site.popen("start", "--job_dispatch_package", str(site.workspace(UNTIL_RELEASED))) as starting:
        job = job_of(starting, "begun")
        starting.send_signal(signal.SIGSTOP)
        try:
            (site.job_dir(job, 0) / "go").touch()
            site.wait_for_end(job)
        finally:
            starting.send_signal(signal.SIGCONT)
        out, err = starting.communicate(timeout=180)
    assert starting.returncode == 0, err
    assert numbers(out) == list(range(3000))
    assert "succeeded after" in out
