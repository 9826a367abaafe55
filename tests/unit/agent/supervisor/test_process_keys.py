"""The CURVE keys that a node makes for its processes."""

from __future__ import annotations

import json
import os
from pathlib import Path

import zmq

from clusterctl.agent.supervisor.process_keys import ProcessKeys
from clusterctl.common.curve_keys import public_key, z85
from clusterctl.common.paths import JobPaths


def test_a_public_key_is_the_one_that_zeromq_computes() -> None:
    for secret in (bytes(32), bytes(range(32)), b"\xff" * 32, *(os.urandom(32) for _ in range(20))):
        assert z85(public_key(secret)).encode() == zmq.curve_public(z85(secret).encode())


def test_new_keys_replace_the_old_ones_and_each_process_learns_those_of_its_peers(tmp_path: Path) -> None:
    run = JobPaths(tmp_path / "JOB").run("0001")
    run.keys.mkdir(parents=True)
    keys = ProcessKeys(run)
    names = ("pserver0", "trainer0", "trainer11")
    keys.renew(names)
    before = keys.known([*names, "trainer1"])
    assert sorted(before) == sorted(names)
    keys.renew(["trainer11"])
    publics = keys.known(names)
    assert [name for name in names if publics[name] != before[name]] == ["trainer11"]
    for name in names:
        keys.complete(name, {**publics, "pserver1": "other"})
    pserver = json.loads((run.keys / "pserver-0.json").read_text())
    assert pserver["allow"] == {publics["trainer0"]: "trainer-0", publics["trainer11"]: "trainer-11"}
    trainer = json.loads((run.keys / "trainer-11.json").read_text())
    assert trainer["servers"] == [publics["pserver0"], "other"]
    assert zmq.curve_public(trainer["secret"].encode()).decode() == trainer["public"] == publics["trainer11"]
    assert (run.keys / "trainer-11.json").stat().st_mode & 0o777 == 0o600
