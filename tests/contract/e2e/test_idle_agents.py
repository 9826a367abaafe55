"""Agents that stay for the next request of the same program: they end, are cut off, or lose their code meanwhile."""

from __future__ import annotations

import os
import shutil
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from clusterctl.cluster import Cluster
from clusterctl.config import load
from clusterctl.inventory import Node, build
from support.processes import is_alive, kill_all, processes_with_environment, wait_until
from support.site import Site
from support.wires import wires_to

pytestmark = pytest.mark.nodes(2)

SAY_HI = {"op": "exec", "script": "echo hi >>~/his"}


@contextmanager
def asked(conf: Path) -> Iterator[Cluster]:
    """Yield the nodes of a conf.py, with an idle agent on each."""
    settings = load(conf, os.environ)
    inventory = build(settings)
    with Cluster(settings, inventory, inventory.nodes) as cluster:
        assert all(outcome.ok for outcome in cluster.ask({"op": "jobs"}))
        yield cluster


def idle_agents(site: Site) -> list[int]:
    homes = [str(site.home(node)) for node in range(2)]
    return [proc.pid for proc in processes_with_environment("HOME", *homes) if "alarm" in proc.command]


def result(cluster: Cluster, node: Node, request: dict[str, Any]) -> Any:
    with cluster.call(node, request) as call:
        return call.result()


def his(site: Site) -> list[str]:
    files = [site.home(node) / "his" for node in range(2)]
    texts = [file.read_text() if file.exists() else "" for file in files]
    for file in files:
        file.unlink(missing_ok=True)
    return texts


def test_the_next_request_goes_to_the_same_agent(site: Site) -> None:
    with asked(site.conf()) as cluster:
        agents = idle_agents(site)
        assert len(agents) == 2
        assert all(outcome.ok for outcome in cluster.ask({"op": "jobs"}))
        assert idle_agents(site) == agents
    assert wait_until(lambda: not idle_agents(site))


def test_agents_that_have_ended_are_replaced_even_for_what_must_not_run_twice(site: Site) -> None:
    with asked(site.conf()) as cluster:
        kill_all(idle_agents(site))
        assert all(outcome.ok for outcome in cluster.map(lambda node: result(cluster, node, SAY_HI)))
    assert his(site) == ["hi\n", "hi\n"]


def test_agents_whose_code_was_removed_are_replaced(site: Site) -> None:
    with asked(site.conf()) as cluster:
        agents = idle_agents(site)
        for node in range(2):
            shutil.rmtree(site.home(node) / "clusterctl")
        assert all(outcome.ok for outcome in cluster.ask({"op": "jobs"}))
        assert not set(idle_agents(site)) & set(agents)


@pytest.mark.parametrize("op", ["exec", pytest.param("jobs", marks=pytest.mark.slow)])
def test_what_an_idle_agent_may_have_begun_is_repeated_only_if_that_does_no_harm(site: Site, op: str) -> None:
    """The agent gets the request, and the connection breaks before it has greeted."""
    (port,) = (int(host.rpartition(":")[2]) for host in site.hosts[:1])
    request = SAY_HI if op == "exec" else {"op": op}
    with wires_to([port]) as (wire,):
        conf = site.conf(HOSTS=[f"127.0.0.1:{wire.port}"], STRICT_HOST_KEYS=False)
        with asked(conf) as cluster:
            (agent,) = idle_agents(site)
            freeze(agent)
            timer = threading.Timer(0.5, wire.cut)
            timer.start()
            (outcome,) = cluster.map(lambda node: result(cluster, node, request))
            timer.join()
            os.kill(agent, signal.SIGCONT)
            assert outcome.ok == (op == "jobs")
            assert outcome.ok or outcome.error.details["reason"] == "lost"
    assert wait_until(lambda: not is_alive(agent))
    assert his(site)[0] in ("", "hi\n")


def freeze(pid: int) -> None:
    """Stop a process. One that waits for a processor stops later."""
    os.kill(pid, signal.SIGSTOP)
    assert wait_until(lambda: Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T")
