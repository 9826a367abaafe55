"""`clusterctl fake` and `clusterctl demo` with containers as nodes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from clusterctl import fake
from clusterctl.fake.docker import project_name
from clusterctl.fake.layout import FakePaths
from contract.e2e.programs import REGRESSION
from real.docker.compose import compose_command, need_images, objects, wait_for_a_pass
from support.processes import assert_none_left, wait_until


@pytest.fixture(scope="module")
def fake_directory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The directory of a fake cluster of three containers; Docker has nothing of it afterwards."""
    compose_command()
    need_images()
    directory = tmp_path_factory.mktemp("containers") / "fake"
    fake.up(directory, 3, backend="docker")
    assert objects_of(directory)
    yield directory
    fake.down(directory)
    assert not directory.exists()
    assert objects_of(directory) == []


def objects_of(directory: Path) -> list[str]:
    """Return the containers, networks and volumes of the fake cluster in `directory`."""
    return objects(project_name(FakePaths.of(directory)))


def begin(directory: Path, *args: str) -> subprocess.Popen[str]:
    env = {**os.environ, "CLUSTERCTL_CONF": str(directory / "conf.py"), "COLUMNS": "120"}
    return subprocess.Popen(
        [sys.executable, "-m", "clusterctl", *args],
        cwd=directory.parent,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process: subprocess.Popen[str], code: int = 0) -> tuple[str, str]:
    with process:
        out, err = process.communicate(timeout=300)
    assert process.returncode == code, out + err
    return out, err


def states(directory: Path) -> list[tuple[str, bool]]:
    seen = json.loads(finish(begin(directory, "fake", "status", "--dir", str(directory), "--json"))[0])
    assert (seen["backend"], seen["alive"]) == ("docker", True)
    return [(node["state"], node["answers"]) for node in seen["nodes"]]


@pytest.mark.parametrize(("fault", "state"), [("kill", "killed"), ("pause", "paused"), ("cut", "cut")])
def test_a_fault_of_a_node_is_injected_and_healed_and_the_files_still_lead_to_it(
    fake_directory: Path, fault: str, state: str
) -> None:
    assert states(fake_directory) == [("up", True)] * 3
    finish(begin(fake_directory, "fake", fault, "node1", "--dir", str(fake_directory)))
    assert states(fake_directory) == [("up", True), (state, False), ("up", True)]
    assert "node1 is back" in finish(begin(fake_directory, "fake", "heal", "1", "--dir", str(fake_directory)))[0]
    assert states(fake_directory) == [("up", True)] * 3
    out, _ = finish(begin(fake_directory, "exec", "--json", "--", "hostname", "-i"))
    addresses = {node["stdout"].strip() for node in json.loads(out)["nodes"]}
    assert addresses == {node.node.address for node in fake.status(fake_directory).nodes}


def test_a_node_that_is_cut_off_fails_the_run_and_is_named(fake_directory: Path) -> None:
    conf = fake_directory / "conf.py"
    ours = conf.read_text()
    workspace = fake_directory.parent / "work"
    workspace.mkdir()
    (workspace / "train.py").write_text(REGRESSION)
    conf.write_text(ours + 'NODE_GRACE_S = 10\nON_NODE_LOSS = "fail"\n')
    starting = begin(fake_directory, "start", "--job_dispatch_package", str(workspace), "--num_passes=1000000")
    wait_for_a_pass(starting)
    finish(begin(fake_directory, "fake", "cut", "2", "--dir", str(fake_directory)))
    out, err = finish(starting, 1)
    assert "node2" in out + err
    _, message = finish(begin(fake_directory, "fake", "heal", "2", "--dir", str(fake_directory)))
    port = fake.status(fake_directory).nodes[2].node.port
    assert (f"set HOSTS[2] to Host('trainer@127.0.0.1:{port}'" in message) == (f":{port}'" not in ours)
    assert wait_until(lambda: not any(node.processes for node in fake.status(fake_directory).nodes))
    conf.write_text(ours)


def test_the_demo_runs_and_leaves_nothing(tmp_path: Path) -> None:
    compose_command()
    need_images()
    command = ("demo", "--backend", "docker", "-n", "2", "--passes", "1", "--dir", "it", "--json")
    demo = begin(tmp_path / "it", *command)
    assert wait_until(lambda: objects_of(tmp_path / "it/cluster"))
    document = json.loads(finish(demo)[0])
    assert document["perplexity"] < document["unigram_perplexity"]
    assert objects_of(tmp_path / "it/cluster") == []
    assert not (tmp_path / "it/cluster").exists()


def test_a_cluster_whose_creator_is_killed_leaves_nothing(tmp_path: Path) -> None:
    compose_command()
    need_images()
    directory = tmp_path / "fake"
    script = (
        "import time; from pathlib import Path; from clusterctl import fake\n"
        f"fake.up(Path({str(directory)!r}), 1, backend='docker', lifeline=True, remove=True)\n"
        "print('up', flush=True); time.sleep(300)\n"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as creator:
        assert creator.stdout is not None
        assert creator.stdout.readline() == b"up\n"
        assert objects_of(directory)
        creator.send_signal(signal.SIGKILL)
    assert wait_until(lambda: objects_of(directory) == [])
    assert_none_left("CLUSTERCTL_FAKE", str(directory))
    assert not directory.exists()
