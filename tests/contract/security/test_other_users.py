"""Another user of a node can see that a job is running, and its command lines: no file, environment or secret."""

from __future__ import annotations

import ast
import grp
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from clusterctl.cluster.agent_call import Bundle
from clusterctl.runtime.shm import region
from clusterctl.runtime.shm.client import connect_shm
from clusterctl.runtime.shm.server import ShmServer
from contract.security.strangers import (
    NOBODY,
    as_stranger,
    in_stranger,
    is_told_stranger,
    needs_root,
    open_to_strangers,
    plant,
    shared_directory,
)
from support.places import ROOT
from support.processes import processes_with_environment, wait_until
from support.site import Site, agent_processes

PACKAGE = ROOT / "clusterctl"
TOKEN = "a-token-that-conf.py-gives"
TRAIN = """
import os, time
from clusterctl.runtime import connect, SGD, zeros
with connect() as ps:
    w = ps.dense("w", shape=(100_000,), rule=SGD(0.1), init=zeros())
    for batch in ps.steps(lambda pass_, rng: iter([1] * 3), passes=1):
        ps.push({w: w.value}, samples=1)
    ps.save("model")
    open("made-by-the-job", "w").write("x")
    print("up", flush=True)
    while not os.path.exists("go"):
        time.sleep(0.05)
"""


def secrets_of(job: Path) -> list[bytes]:
    """Return everything that must stay hidden: the private keys of a run, and the values of ENV."""
    keys = list((job / ".clusterctl/runs/0001/keys").iterdir())
    assert {path.stat().st_mode & 0o777 for path in keys} == {0o600}
    secrets = [TOKEN.encode()]
    for path in keys:
        text = path.read_text()
        if path.suffix == ".json":
            secrets.append(json.loads(text)["secret"].encode())
        elif "PRIVATE KEY" in text:
            secrets.append(text.splitlines()[1].encode())
    assert len(secrets) == 4  # the token, a supervisor's key, a pserver's and a trainer's
    return secrets


@pytest.mark.slow
@needs_root
def test_a_running_job_exposes_no_file_environment_or_secret_to_another_user(site: Site) -> None:
    with shared_directory(0o755) as shared:
        root = shared / "root"
        root.mkdir(0o755)  # as created by someone who did not consider this
        site.conf(HOSTS=site.hosts[:1], ROOT_DIR=root, ENV={"TOKEN": TOKEN})
        name = site.start(TRAIN)
        job = root / name
        assert wait_until(lambda: b"up\n" in (job / "log/train.log").read_bytes())
        secrets = secrets_of(job)
        running = [proc.pid for proc in processes_with_environment("CLUSTERCTL_JOB_DIR", str(job))]
        running += [proc.pid for proc in agent_processes(str(job))]
        assert len(running) in (4, 5)  # a supervisor, its guardian, a pserver, a trainer; a piece server once needed
        assert open_to_strangers(root) == []
        for pid in running:
            for file in ("environ", "maps", "mem", "fd", "fdinfo", "cwd/", "root/"):
                assert as_stranger("cat" if "/" not in file else "ls", f"/proc/{pid}/{file}").returncode, file
        seen = as_stranger("sh", "-c", "cat /proc/[0-9]*/cmdline /proc/net/unix").stdout
        assert str(job).encode() in seen  # it does check our processes
        assert [secret for secret in secrets if secret in seen] == []
        (job / "go").touch()
        assert wait_until(lambda: site.status(name)["state"] == "succeeded")
        # The supervisor removes them after it has recorded the end.
        assert wait_until(lambda: not (job / ".clusterctl/runs/0001/keys").exists())
        assert open_to_strangers(root) == []


@pytest.mark.slow
@needs_root
def test_the_keys_of_a_run_are_also_deleted_when_it_is_stopped(site: Site) -> None:
    site.conf(HOSTS=site.hosts[:1])
    job = site.start(TRAIN)
    keys = site.job_dir(job, 0) / ".clusterctl/runs/0001/keys"
    assert keys.is_dir()
    site.ok("stop", job)
    assert not keys.exists()


@needs_root
def test_a_directory_that_another_user_made_is_not_used(site: Site) -> None:
    with shared_directory(0o1777) as place:
        for made in ("root", "root/.clusterctl", "root/.clusterctl/lib"):
            assert as_stranger("mkdir", "-m", "777", str(place / made)).returncode == 0
        site.conf(HOSTS=site.hosts[:1], ROOT_DIR=place / "root")
        result = site.run("dispatch", str(site.workspace("")))
        assert result.code == 3
        assert "can be written by others" in result.err
        assert [path for path in (place / "root").rglob("*") if path.owner() == "root"] == []


@needs_root
def test_a_link_that_another_user_left_in_a_shared_root_dir_is_not_used(site: Site) -> None:
    with shared_directory(0o1777) as place:
        (place / "mine").mkdir(0o700)
        assert as_stranger("ln", "-s", str(place / "mine"), str(place / ".clusterctl")).returncode == 0
        site.conf(HOSTS=site.hosts[:1], ROOT_DIR=place)
        result = site.run("dispatch", str(site.workspace("")))
        assert result.code == 3
        assert "can be written by others" in result.err
        assert list((place / "mine").iterdir()) == []


@needs_root
def test_a_root_dir_that_others_could_rename_is_not_used(site: Site) -> None:
    with shared_directory(0o777) as place:
        (place / "between/mine").mkdir(0o700, parents=True)
        site.conf(HOSTS=site.hosts[:1], ROOT_DIR=place / "between/mine")
        result = site.run("dispatch", str(site.workspace("")))
        assert result.code == 3
        assert f"{place} can be written by everybody" in result.err
        assert list((place / "between/mine").iterdir()) == []
        place.chmod(0o1777)  # the sticky bit keeps others from renaming what is not theirs
        site.ok("dispatch", str(site.workspace("")))


@needs_root
def test_a_root_dir_may_be_a_link_of_ones_own_but_not_of_another_user(site: Site) -> None:
    with shared_directory(0o1777) as place:
        (place / "mine").mkdir(0o700)
        (place / "link").symlink_to(place / "mine")
        site.conf(HOSTS=site.hosts[:1], ROOT_DIR=place / "link")
        site.ok("dispatch", str(site.workspace("")))
        assert as_stranger("ln", "-s", str(place / "mine"), str(place / "trap")).returncode == 0
        site.conf(HOSTS=site.hosts[:1], ROOT_DIR=place / "trap")
        result = site.run("dispatch", str(site.workspace("")))
        assert result.code == 3
        assert "can be written by others" in result.err


@needs_root
def test_a_root_dir_below_a_directory_of_another_user_or_a_team_is_not_used(site: Site) -> None:
    """tests/unit/ranks/test_other_accounts.py has access control lists, by the same rule."""
    with shared_directory(0o755) as place:
        (place / "mine").mkdir(0o700)
        site.conf(HOSTS=site.hosts[:1], ROOT_DIR=place / "mine")
        place.chmod(0o775)
        site.ok("dispatch", str(site.workspace("")))  # nobody but root is in that group
        group = f"{place} can be written by group {grp.getgrgid(NOBODY).gr_name}, who"
        owner = f"{place} can be written by its owner, uid {NOBODY}, who"
        for uid, gid, writers in ((-1, NOBODY, group), (NOBODY, -1, owner)):
            os.chown(place, uid, gid)
            result = site.run("status")
            assert (result.code, writers in result.err) == (3, True), result
            place.chmod(0o755)


@needs_root
def test_an_agent_is_not_installed_into_a_directory_that_another_user_makes_at_that_moment(tmp_path: Path) -> None:
    bundle = Bundle()
    with shared_directory(0o1777) as place:
        argv = [sys.executable, "-I", "-S", str(PACKAGE / "agent/boot.py"), bundle.digest, str(place)]
        with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as agent:
            assert agent.stdin is not None
            assert agent.stdout is not None
            agent.stdin.write(b'{"op": "jobs"}\n')
            agent.stdin.flush()
            assert json.loads(agent.stdout.readline())["need"] == bundle.digest
            assert as_stranger("mkdir", "-m", "777", str(place / ".clusterctl")).returncode == 0
            agent.stdin.write(bundle.parcel)
            agent.stdin.close()
            answer = json.loads(agent.stdout.readline())
        assert f"{place}/.clusterctl can be written by others" in answer["error"]["message"]
        assert agent.returncode == 1


@pytest.mark.slow
@needs_root
def test_jobs_that_another_user_puts_into_a_shared_root_dir_are_not_believed(site: Site) -> None:
    with shared_directory(0o1777) as place:
        site.conf(HOSTS=site.hosts[:1], ROOT_DIR=place)
        code = "print('our code')  # and nothing else"
        theirs = "JOB29991231-235959"
        assert in_stranger(lambda: plant(place / theirs, "train.py", code.encode()))
        assert "there is no job" in site.run("status").err
        job = site.dispatch(code)
        assert job < theirs
        assert (place / job / "train.py").read_text() == code
        assert site.status(job)["job"] == site.run("status", "--json").json()["job"] == job
        assert theirs not in "".join(site.ok(command).out for command in ("jobs", "status", "prune"))
        for ref in (theirs, str(place / theirs)):
            for command in ("status", "stop", "why", "logs"):
                result = site.run(command, ref)
                assert result.code == 4, (command, result)
                assert f"{place}/{theirs} belongs to another account" in result.err


@needs_root
def test_a_job_to_which_others_can_write_is_refused_by_name(site: Site) -> None:
    site.conf(HOSTS=site.hosts[:1])
    job = site.job_dir(site.dispatch(""), 0)
    job.chmod(0o770)
    for command in ("status", "start"):
        result = site.run(command, *(("--job_workspace", job.name) if command == "start" else ()))
        assert result.code == 4
        assert f"{job} belongs to another account, or others can write to it" in result.err
        assert f"chmod go-w {job}" in result.err
    job.chmod(0o750)
    site.ok("status")


@pytest.fixture
def sharing() -> Iterator[ShmServer]:
    made = ShmServer()
    yield made
    made.close()


def is_let_in(sharing: ShmServer) -> bool:
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(180)
        sock.connect(f"\0{sharing.name}")
        try:
            region.send(sock, {"rank": 0, **sharing.greeting(0)})
            return bool(region.receive(sock)[0].get("ok"))
        except OSError:
            return False


@needs_root
def test_the_socket_of_shared_memory_turns_another_user_away_even_with_the_token(sharing: ShmServer) -> None:
    assert is_let_in(sharing)
    assert not in_stranger(lambda: is_let_in(sharing))


@needs_root
def test_a_trainer_does_not_show_its_token_to_another_user_who_has_taken_the_name() -> None:
    """The name is not secret on the pserver's host, and it is free on every other host."""
    name = f"clusterctl-{os.getpid()}-0123456789abcdef"  # names are those of the whole machine
    shared: list[object] = []
    assert not is_told_stranger(name, lambda: shared.append(connect_shm({"name": name, "token": "secret"}, 0)))
    assert shared == [None]


def test_temporary_files_are_beside_their_targets_and_never_in_a_shared_directory() -> None:
    """Every call that creates one specifies a directory; a file without a name may be anywhere."""
    makers = {"mkstemp", "mkdtemp", "TemporaryDirectory", "NamedTemporaryFile", "mktemp", "SpooledTemporaryFile"}
    calls = []
    texts = {path: path.read_text() for path in PACKAGE.rglob("*.py")}
    for path, text in texts.items():
        for node in ast.walk(ast.parse(text)) if any(maker in text for maker in makers) else ():
            if isinstance(node, ast.Call) and getattr(node.func, "attr", getattr(node.func, "id", "")) in makers:
                calls.append((path.name, {keyword.arg for keyword in node.keywords}))
    assert len(calls) > 3
    random_name_where_there_is_no_memfd = ["tls.py"]
    assert [name for name, keywords in calls if "dir" not in keywords] == random_name_where_there_is_no_memfd
    assert not [path for path, text in texts.items() if '"/tmp' in text]


@needs_root
def test_this_test_can_run_as_another_user() -> None:
    assert in_stranger(lambda: os.geteuid() == NOBODY)
    assert as_stranger("cat", "/etc/shadow").returncode != 0
