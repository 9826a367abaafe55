"""Dispatches killed at random moments on either side: the next one is complete and leaves nothing behind."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from pathlib import Path

import pytest

from clusterctl.cluster import FIRST_LINE
from support.processes import processes_with_environment, wait_until
from support.site import Site
from support.trees import described

pytestmark = pytest.mark.slow

NODES = 4


def agents(site: Site, node: int) -> list[int]:
    """Return the pids of the agents that are serving a command on a node."""
    processes = processes_with_environment("HOME", str(site.home(node)))
    return [process.pid for process in processes if FIRST_LINE in process.command]


def assert_arrives(site: Site, top: Path) -> None:
    document = site.ok("dispatch", str(top), "--json").json()
    assert len(document["nodes"]) == NODES
    for node in document["nodes"]:
        assert described(Path(node["dir"])) == described(top)
        assert list((Path(node["dir"]).parent / ".clusterctl/incoming").iterdir()) == []


@pytest.mark.parametrize(
    ("any_site", "relay"),
    [("embedded", "always"), ("openssh", "never")],
    indirect=["any_site"],
)
def test_after_a_kill_on_either_side_the_next_dispatch_is_complete(any_site: Site, relay: str) -> None:
    """The moments are random; the name of the changed file records each."""
    chance = random.Random()
    any_site.conf(RELAY=relay)
    top = any_site.directory / f"killed-{relay}"
    top.mkdir()
    for number in range(40):
        (top / f"data-{number}").write_bytes(chance.randbytes(1 << 18))
    (top / "large").write_bytes(chance.randbytes(20 << 20))
    for victim in ("client", "agent", "client"):
        after_s = chance.uniform(0.2, 1.5)
        (top / f"{victim}-{after_s:.3f}").write_bytes(chance.randbytes(9 << 20))
        with any_site.popen("dispatch", str(top)) as process:
            time.sleep(after_s)
            if victim == "client":
                process.kill()
            else:
                for pid in agents(any_site, 1):
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
            process.communicate(timeout=180)
    assert_arrives(any_site, top)
    assert wait_until(lambda: not any(agents(any_site, node) for node in range(NODES)))
    any_site.conf()
