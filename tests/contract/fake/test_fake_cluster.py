from __future__ import annotations

import json
import os
import resource
import runpy
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from clusterctl import fake
from clusterctl.errors import ClusterctlError, RefusedError, UsageError
from clusterctl.fake.cluster import FakeCluster
from clusterctl.transport import Completed, Transport, command
from support.nodes import TestNode, TestSettings
from support.processes import assert_none_left, is_alive, processes_below, processes_with_environment, wait_until

# Two processes, both of which exist when it says so.
DAEMON = (
    "rm -f up; setsid sh -c 'sleep 300 & : >up; wait' </dev/null >/dev/null 2>&1 & "
    "until [ -e up ]; do sleep 0.01; done; echo started"
)
STUBBORN = DAEMON.replace("sleep 300", 'trap "" TERM; sleep 300')  # both ignore TERM


def ssh_settings(cluster: FakeCluster) -> TestSettings:
    return TestSettings(cluster.ssh_config, cluster.identity, cluster.known_hosts)


def run(cluster: FakeCluster, index: int, script: str) -> Completed:
    with Transport(ssh_settings(cluster)) as transport:
        node = TestNode(f"node{index}", cluster.nodes[index].port)
        return transport.run(node, command("sh", "-c", script))


def kill_servers(directory: Path) -> None:
    """Kill every SSH server of a cluster with kill -9, but not its sessions."""
    state = json.loads((directory / "fake.json").read_text())
    pids = [server["pid"] for server in [state["server"], *state["daemons"]] if server]
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    assert wait_until(lambda: not any(map(is_alive, pids)))


def of(directory: Path) -> list[object]:
    return list(processes_with_environment("CLUSTERCTL_FAKE", str(directory)))


def test_a_cluster_comes_up_works_and_leaves_nothing(directory: Path, backend: str) -> None:
    cluster = fake.up(directory, 3, backend=backend)
    try:
        for index in range(3):
            done = run(cluster, index, "echo $HOME; echo $CLUSTERCTL_FAKE_NODE")
            assert done.stdout.decode().split() == [str(directory / f"nodes/node{index}"), str(index)]
    finally:
        assert fake.down(directory) == 0
    assert not directory.exists()
    assert not of(directory)
    for node in cluster.nodes:
        with pytest.raises(ConnectionRefusedError), socket.create_connection(("127.0.0.1", node.port)):
            pass


def test_conf_and_known_hosts_say_how_to_connect(directory: Path, backend: str) -> None:
    cluster = fake.up(directory, 2, backend=backend)
    conf = runpy.run_path(str(cluster.conf))
    assert conf["HOSTS"] == list(cluster.hosts)
    assert conf["ROOT_DIR"] == "~/clusterctl"
    for name in ("IDENTITY_FILE", "KNOWN_HOSTS", "SSH_CONFIG"):
        path = Path(conf[name])
        assert path.is_absolute()
        assert path.is_relative_to(directory)
        assert path.stat().st_mode & 0o077 == 0
    assert json.loads((directory / "fake.json").read_text())["backend"] == cluster.backend == backend
    for node in cluster.nodes:
        shown = subprocess.run(
            ["ssh-keygen", "-l", "-f", directory / f"keys/node{node.index}.pub"], check=True, capture_output=True
        )
        assert node.fingerprint in shown.stdout.decode().split()
        assert f"[127.0.0.1]:{node.port} ssh-ed25519 " in cluster.known_hosts.read_text()


def test_the_ssh_program_connects_with_the_files_we_write(tmp_path: Path, backend: str) -> None:
    directory = tmp_path / "with space, 100%"
    with fake.up(directory, 2, backend=backend):
        done = subprocess.run(
            ["ssh", "-F", directory / "ssh_config", "node1", "echo $CLUSTERCTL_FAKE_NODE; exit 5"],
            capture_output=True,
            check=False,
            timeout=180,
        )
    assert (done.returncode, done.stdout, done.stderr) == (5, b"1\n", b"")


def test_a_command_finds_a_clean_environment_and_this_python(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STRAY", "1")
    cluster = fake.up(directory, 1)
    names = run(cluster, 0, "env").stdout.decode()
    found = dict(line.split("=", 1) for line in names.splitlines())
    assert set(found) - {"PWD", "OLDPWD", "SHLVL", "_"} == {
        "HOME", "USER", "LOGNAME", "SHELL", "PATH", "SSH_CLIENT", "SSH_CONNECTION", "CLUSTERCTL_FAKE",
        "CLUSTERCTL_FAKE_NODE",
    }  # fmt: skip
    client, client_port, server, server_port = found["SSH_CONNECTION"].split()
    assert (client, server, int(server_port)) == ("127.0.0.1", "127.0.0.1", cluster.nodes[0].port)
    assert client_port.isdigit()


def test_a_command_finds_this_python(directory: Path) -> None:
    cluster = fake.up(directory, 1, backend="ssh")
    python = run(cluster, 0, "python3 -c 'import numpy, zmq, sys; print(sys.prefix)'").stdout.decode().strip()
    assert python == sys.prefix


def test_an_idle_cluster_does_not_start_twice(directory: Path) -> None:
    first = fake.up(directory, 1)
    with pytest.raises(RefusedError, match="a fake cluster of 1 nodes is up in "):
        fake.up(directory, 1)
    assert run(first, 0, "echo fine").stdout == b"fine\n"


def test_going_down_twice_or_without_a_cluster_does_no_harm(directory: Path, tmp_path: Path) -> None:
    assert fake.down(directory) == 0
    fake.up(directory, 1)
    assert fake.down(directory) == 0
    assert fake.down(directory) == 0
    (tmp_path / "other").mkdir()
    (tmp_path / "other/conf.py").write_text("HOSTS = []\n")
    (tmp_path / "other/nodes").mkdir()
    fake.down(tmp_path / "other")
    assert sorted(path.name for path in (tmp_path / "other").iterdir()) == ["conf.py", "nodes"]


def test_a_daemon_outlives_its_channel_and_is_ended_by_down(directory: Path, backend: str) -> None:
    cluster = fake.up(directory, 2, backend=backend)
    assert run(cluster, 1, STUBBORN).stdout == b"started\n"
    states = fake.status(directory).nodes
    assert [state.processes > 0 for state in states] == [False, True]
    assert fake.down(directory) == 2
    assert_none_left("CLUSTERCTL_FAKE", str(directory))


def test_a_cluster_whose_servers_were_killed_starts_again(directory: Path, backend: str) -> None:
    old = fake.up(directory, 2, backend=backend)
    run(old, 0, DAEMON)
    kill_servers(directory)
    dead = fake.status(directory)
    assert (dead.alive, [state.answers for state in dead.nodes]) == (False, [False, False])
    new = fake.up(directory, 3, backend=backend)
    assert run(new, 2, "echo fine").stdout == b"fine\n"
    assert [state.processes for state in fake.status(directory).nodes] == [0, 0, 0]


def test_term_makes_the_server_clean_up(directory: Path) -> None:
    cluster = fake.up(directory, 1)
    run(cluster, 0, DAEMON)
    assert cluster.pid is not None
    os.kill(cluster.pid, signal.SIGTERM)
    assert wait_until(lambda: not is_alive(cluster.pid))
    assert not of(directory)
    assert not (directory / "nodes").exists()


def test_two_clusters_side_by_side_leave_each_other_alone(tmp_path: Path) -> None:
    with fake.up(tmp_path / "a", 2) as one, fake.up(tmp_path / "b", 2, backend="ssh") as two:
        run(one, 0, DAEMON)
        run(two, 0, DAEMON)
        assert fake.down(tmp_path / "a") == 2
        assert run(two, 1, "echo fine").stdout == b"fine\n"
        assert fake.status(tmp_path / "b").nodes[0].processes == 2


def test_a_conf_that_someone_edited_is_never_lost(directory: Path) -> None:
    cluster = fake.up(directory, 1)
    edited = cluster.conf.read_text() + 'MODE = "async"\n'
    cluster.conf.write_text(edited)
    fake.down(directory)
    assert [path.name for path in directory.iterdir()] == ["conf.py"]
    with pytest.raises(RefusedError, match="was not written by `fake up`, or was edited since"):
        fake.up(directory, 1)
    assert (directory / "conf.py").read_text() == edited


def test_shards_in_its_conf_are_not_reported_missing_until_someone_edits_it(directory: Path, tmp_path: Path) -> None:
    """Its conf.py lists shards of the template workspace, but any other workspace may be sent."""
    (tmp_path / "w").mkdir()
    command = [sys.executable, "-m", "clusterctl", "dispatch", str(tmp_path / "w"), "--plan", "--conf"]
    with fake.up(directory, 1) as cluster:
        for missed in (False, True):
            done = subprocess.run([*command, str(cluster.conf)], capture_output=True, text=True, check=True)
            assert ("matches no file" in done.stderr) is missed
            cluster.conf.write_text(cluster.conf.read_text() + "# mine\n")
    cluster.conf.unlink()


def test_a_directory_with_files_of_someone_else_is_refused(directory: Path) -> None:
    directory.mkdir()
    (directory / "keys").mkdir()
    with pytest.raises(RefusedError, match="has keys, but not from a fake cluster"):
        fake.up(directory, 1)
    assert [path.name for path in directory.iterdir()] == ["keys"]


def test_homes_with_directories_that_jobs_made_inaccessible_are_removed_without_following_links(
    directory: Path, tmp_path: Path
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").write_text("")
    cluster = fake.up(directory, 1)
    run(cluster, 0, f"ln -s {outside} link; mkdir -p a/b; touch a/b/c; chmod 500 a/b; chmod 0 a")
    fake.down(directory)
    assert not directory.exists()
    assert (outside / "kept").exists()


@pytest.mark.parametrize("stranger", ["key", "user"])
def test_only_our_key_is_accepted_and_only_for_this_user(
    directory: Path, tmp_path: Path, backend: str, stranger: str
) -> None:
    cluster = fake.up(directory, 1, backend=backend)
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", tmp_path / "other"], check=True)
    config = tmp_path / "config"
    text = cluster.ssh_config.read_text()
    config.write_text(text.replace(str(cluster.identity), str(tmp_path / "other")) if stranger == "key" else text)
    user = ["-l", "somebody"] if stranger == "user" else []
    done = subprocess.run(
        ["ssh", "-F", config, "-o", "BatchMode=yes", *user, "node0", "true"],
        check=False,
        capture_output=True,
        timeout=180,
    )
    assert done.returncode == 255
    assert b"Permission denied" in done.stderr


def test_files_are_copied_by_sftp_but_not_outside_the_home(directory: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    (tmp_path / "up").write_bytes(bytes(range(256)))
    cluster = fake.up(directory, 1)
    run(cluster, 0, f"ln -s {tmp_path} escape; ln -s {tmp_path}/secret leak")

    def sftp(*lines: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["sftp", "-q", "-F", directory / "ssh_config", "-b", "-", "node0"],
            input="\n".join(lines),
            text=True,
            capture_output=True,
            check=False,
            cwd=tmp_path,
            timeout=180,
        )

    assert sftp("put up copy", "mkdir d", "rename copy d/copy", "get d/copy back", "ls -l").returncode == 0
    assert (tmp_path / "back").read_bytes() == bytes(range(256))
    for attempt in (
        "get leak stolen",
        "get escape/secret stolen",
        "get ../../../secret stolen",
        f"get {tmp_path}/secret stolen",
        "put up escape/planted",
        f"symlink {tmp_path}/secret other",
        "rm escape/secret",
    ):
        assert sftp(attempt).returncode != 0, attempt
    assert not (tmp_path / "stolen").exists()
    assert not (tmp_path / "planted").exists()
    assert (tmp_path / "secret").exists()


def test_a_terminal_and_a_shell_are_refused_politely(directory: Path) -> None:
    fake.up(directory, 1)
    done = subprocess.run(
        ["ssh", "-tt", "-F", directory / "ssh_config", "node0", "echo ran"],
        capture_output=True,
        check=False,
        timeout=180,
    )
    assert b"PTY allocation request failed" in done.stderr
    shell = subprocess.run(
        ["ssh", "-T", "-F", directory / "ssh_config", "node0"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
        timeout=180,
    )
    assert shell.returncode != 0


@pytest.mark.parametrize(("backend", "remove"), [("embedded", True), ("ssh", False)])
def test_with_a_lifeline_the_cluster_dies_with_its_maker(directory: Path, backend: str, remove: bool) -> None:
    script = (
        "import sys, time; from pathlib import Path; from clusterctl import fake\n"
        f"c = fake.up(Path({str(directory)!r}), 2, backend={backend!r}, lifeline=True, remove={remove})\n"
        "print(c.pid, flush=True); time.sleep(300)\n"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as maker:
        assert maker.stdout is not None
        server = int(maker.stdout.readline())
        state = fake.status(directory)
        cluster = FakeCluster(directory, server, tuple(node.node for node in state.nodes))
        run(cluster, 0, DAEMON)
        maker.kill()
    assert wait_until(lambda: not is_alive(server))
    assert_none_left("CLUSTERCTL_FAKE", str(directory))
    assert not processes_below(directory)
    assert directory.exists() != remove


def test_without_a_lifeline_the_cluster_outlives_its_maker(directory: Path, backend: str) -> None:
    script = (
        f"from pathlib import Path; from clusterctl import fake; fake.up(Path({str(directory)!r}), 1, "
        f"backend={backend!r})"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=180)
    status = fake.status(directory)
    assert status.alive
    assert status.nodes[0].answers


def test_of_two_simultaneous_starts_one_is_refused(directory: Path) -> None:
    results: list[object] = []

    def up() -> None:
        try:
            results.append(fake.up(directory, 1))
        except RefusedError as exc:
            results.append(exc)

    threads = [threading.Thread(target=up) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(180)
    assert sorted(type(result).__name__ for result in results) == ["FakeCluster", "RefusedError"]


def test_leftovers_of_a_maker_killed_halfway_are_cleaned_up(directory: Path, backend: str) -> None:
    script = (
        f"from pathlib import Path; from clusterctl import fake; fake.up(Path({str(directory)!r}), 1000, "
        f"backend={backend!r})"
    )
    with subprocess.Popen([sys.executable, "-c", script]) as maker:
        assert wait_until((directory / "nodes/node5").exists)
        maker.kill()
    assert not fake.status(directory).alive
    with fake.up(directory, 1, backend=backend) as cluster:
        assert run(cluster, 0, "echo fine").stdout == b"fine\n"
    assert not directory.exists()
    assert not of(directory)
    assert not processes_below(directory)


def test_a_user_without_sshd_gets_an_installation_hint(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("clusterctl.fake.sshd.find_program", lambda name: None)
    with pytest.raises(UsageError, match="needs sshd") as caught:
        fake.up(directory, 1, backend="ssh")
    assert caught.value.hint == "apt-get install openssh-server"
    assert not directory.exists()


NO_DAEMON = "echo 'Cannot connect to the Docker daemon. Is it running?' >&2; exit 1"
NO_COMPOSE = 'test "$1" = version && echo 28.0'


@pytest.mark.parametrize(
    ("docker", "message", "hint"),
    [
        (None, "(?m)needs docker$", "apt-get install docker.io docker-compose"),
        (NO_DAEMON, "docker does not answer: Cannot connect", "start it: systemctl start docker"),
        (NO_COMPOSE, "needs docker compose", "apt-get install docker-compose"),
    ],
)
def test_missing_requirements_of_the_docker_backend_are_reported(
    directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, docker: str | None, message: str, hint: str
) -> None:
    (tmp_path / "bin").mkdir()
    if docker is not None:
        (tmp_path / "bin/docker").write_text(f"#!/bin/sh\n{docker}\n")
        (tmp_path / "bin/docker").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    with pytest.raises(UsageError, match=message) as caught:
        fake.up(directory, 1, backend="docker")
    assert caught.value.hint == hint
    assert not directory.exists()


def test_an_error_about_an_unknown_backend_lists_the_existing_ones(directory: Path) -> None:
    with pytest.raises(UsageError, match="'dokcer' is not a backend") as caught:
        fake.up(directory, 1, backend="dokcer")
    assert caught.value.hint == "use one of embedded, ssh, docker"


def test_a_cluster_of_no_nodes_is_a_usage_error(directory: Path) -> None:
    with pytest.raises(UsageError, match="at least one node"):
        fake.up(directory, 0)


def test_the_state_of_a_cluster_that_never_existed_is_refused(directory: Path) -> None:
    with pytest.raises(RefusedError, match="no fake cluster in "):
        fake.status(directory)


def test_more_nodes_than_open_files_allow_are_refused_with_the_limit(directory: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    script = (
        "import resource, sys; from pathlib import Path; from clusterctl import fake\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (128, 128))\n"
        f"fake.up(Path({str(directory)!r}), 64)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "64 nodes need" in done.stderr
    assert "limit is 128" in done.stderr
    assert not directory.exists()
    assert (soft, hard) == resource.getrlimit(resource.RLIMIT_NOFILE)


def test_a_start_that_fails_leaves_nothing(directory: Path, monkeypatch: pytest.MonkeyPatch, backend: str) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    monkeypatch.setattr("clusterctl.fake.openssh.find_sshd", lambda: "/bin/false")
    with pytest.raises(ClusterctlError, match=r"(did|does) not start"):
        fake.up(directory, 1, backend=backend)
    assert not directory.exists()
