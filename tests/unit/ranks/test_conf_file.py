"""The conf.py that clusterctl-rank writes."""

from __future__ import annotations

import socket
from pathlib import Path

from clusterctl.config import Settings, load
from clusterctl.inventory import build
from clusterctl.ranks.control import ConfNode, conf_text

HERE = socket.gethostname()
REACH = ("/usr/bin/clusterctl-rank", "--reach", "/it's/node-1", "{host}")
NODES = [ConfNode(HERE, 2, REACH), ConfNode(HERE, 1, REACH), ConfNode("elsewhere", 3, REACH)]


def loaded(directory: Path, *, live: bool) -> Settings:
    ranks = directory / "it's live"
    if live:
        ranks.mkdir()
    path = directory / "conf.py"
    path.write_text(conf_text("JOB1", "/it's/node{node}", "/usr/bin/python3", str(ranks), NODES))
    return load(path, {})


def test_while_the_run_is_live_other_machines_are_reached_through_their_ranks(tmp_path: Path) -> None:
    settings = loaded(tmp_path, live=True)
    assert [host.via for host in settings.hosts] == ["local", "local", REACH]
    assert settings.python == "/usr/bin/python3"
    nodes = build(settings).nodes
    assert [node.root_dir for node in nodes] == ["/it's/node0", "/it's/node1", "/it's/node2"]
    assert [len(node.trainer_ranks) for node in nodes] == [2, 1, 3]


def test_once_it_has_ended_all_of_it_is_read_here(tmp_path: Path) -> None:
    settings = loaded(tmp_path, live=False)
    assert [node.via for node in build(settings).nodes] == ["local"] * 3
    assert [host.hostname for host in settings.hosts] == [HERE, HERE, "elsewhere"]
