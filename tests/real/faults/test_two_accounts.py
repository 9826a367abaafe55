"""Two accounts of one node, neither of them root, with a scratch disk that both can write to."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from contract.security.strangers import as_stranger, in_stranger, open_to_strangers, plant, shared_directory
from real.faults.machines import end, enough_rights, popen
from support.openssh import openssh_cluster
from support.processes import wait_until
from support.site import Site

pytestmark = pytest.mark.faults

ALICE, MALLORY = 61001, 61002  # accounts that exist only for the node's sshd
TOKEN = "a-token-that-conf.py-gives"
TRAIN = """
import os, time
open("output/result", "w").write("x")
print("up", flush=True)
while not os.path.exists("go"):
    time.sleep(0.05)
"""


def mounts_for(paths: list[Path], views: Path) -> Iterator[str]:
    """Yield mounts that let all accounts read these directories. Python may be below a home that is closed to them."""
    closed: dict[Path, list[Path]] = {}
    for path in paths:
        top = next((above for above in reversed(path.parents) if not above.stat().st_mode & 0o001), None)
        if top is not None:
            closed.setdefault(top, []).append(path)
    for number, (top, below) in enumerate(closed.items()):
        view = views / f"view{number}"
        for path in below:
            place = view / path.relative_to(top)
            place.mkdir(parents=True)
            yield f"mount --bind {path} {place}"
        yield f"mount --rbind {view} {top}"


@pytest.fixture(scope="module")
def accounts() -> Iterator[list[str]]:
    """The prefix of a command that sees both accounts, by mounts of its own: the machine's files stay as they are."""
    if reason := enough_rights():
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    with shared_directory(0o755) as directory:
        mounts = list(mounts_for([Path(sys.prefix), Path(sys.base_prefix)], directory))
        etc = directory / "etc"  # whole: a file mounted on another vanishes when somebody replaces that one
        subprocess.run(["cp", "-a", "/etc", etc], check=False)  # files may vanish meanwhile
        for name, row in (("passwd", "{0}:x:{1}:{1}::/nonexistent:/bin/sh\n"), ("group", "{0}:x:{1}:\n")):
            with (etc / name).open("a") as file:
                file.writelines((row.format("alice", ALICE), row.format("mallory", MALLORY)))
        mounts.append(f"mount --bind {etc} /etc")
        script = " && ".join([*mounts, f"touch {directory / 'up'}", "exec sleep infinity"])
        log = directory / "log"
        keeper = popen("unshare", "--mount", "--propagation", "private", "sh", "-c", script, log=log)
        try:
            assert wait_until((directory / "up").exists), f"no accounts: {log.read_text()}"
            yield ["nsenter", "-t", str(keeper.pid), "-m", "--"]
        finally:
            end(keeper)


@pytest.fixture
def alice(accounts: list[str], tmp_path: Path) -> Iterator[Site]:
    """A node on which clusterctl logs in as alice."""
    with shared_directory(0o755) as reachable, openssh_cluster(reachable / "sshd", 1, inside=accounts) as sshd:
        os.chown(sshd.daemons[0].home, ALICE, ALICE)
        paths = {"IDENTITY_FILE": sshd.identity, "KNOWN_HOSTS": sshd.known_hosts, "SSH_CONFIG": sshd.ssh_config}
        site = Site(tmp_path, sshd.directory, [f"alice@127.0.0.1:{sshd.daemons[0].port}"], paths)
        try:
            yield site
        finally:
            site.end_everything()


@pytest.fixture
def scratch() -> Iterator[Path]:
    with shared_directory(0o1777) as directory:
        yield directory


def test_a_job_of_one_account_is_closed_to_the_other(alice: Site, scratch: Path) -> None:
    alice.conf(ROOT_DIR=scratch, PSERVERS=0, ENV={"TOKEN": TOKEN})
    name = alice.start(TRAIN)
    job = scratch / name
    assert wait_until(lambda: (job / "log/train.log").read_bytes().startswith(b"up"))
    # Its supervisor replaces files meanwhile: some of them may be gone when `find` looks.
    find = ["find", str(job), str(scratch / ".clusterctl"), "-printf", "%U\n"]
    owners = subprocess.run(find, capture_output=True, text=True, check=False).stdout.split()
    assert set(owners) == {str(ALICE)}
    assert open_to_strangers(scratch, MALLORY) == []
    running = [proc.pid for proc in alice.leftovers()]
    assert len(running) >= 3  # a supervisor, its guardian, a trainer
    for pid in running:
        for argv in (["cat", f"/proc/{pid}/environ"], ["ls", f"/proc/{pid}/fd"], ["kill", "-9", str(pid)]):
            assert as_stranger(*argv, uid=MALLORY).returncode, argv
    for path in (job, scratch / ".clusterctl"):
        assert as_stranger("mv", str(path), f"{path}-2", uid=MALLORY).returncode
        assert as_stranger("rm", "-rf", str(path), uid=MALLORY).returncode
    (job / "go").touch()
    assert wait_until(lambda: alice.status(name)["state"] == "succeeded")
    alice.ok("collect", name, "--output", str(alice.directory / "home"))
    assert (alice.directory / "home/node-0/output/result").read_text() == "x"


def test_what_the_other_account_has_put_there_is_not_used(alice: Site, scratch: Path) -> None:
    alice.conf(ROOT_DIR=scratch, PSERVERS=0)
    code = "print('the code of alice', flush=True)"
    planted = scratch / "JOB29991231-235959"
    assert in_stranger(lambda: plant(planted, "train.py", code.encode()), MALLORY)
    job = alice.ok("start", "--job_dispatch_package", str(alice.workspace(code)), "--json", "--detach").json()["job"]
    assert wait_until(lambda: alice.status(job)["state"] == "succeeded")
    assert "the code of alice" in alice.ok("logs").out
    assert planted.name not in alice.ok("jobs").out
    refused = alice.run("start", "--job_workspace", planted.name)
    assert refused.code == 4
    assert f"{planted} belongs to another account" in refused.err


def test_a_root_dir_that_the_other_account_made_or_could_rename_is_not_used(alice: Site, scratch: Path) -> None:
    assert as_stranger("mkdir", "-m", "777", str(scratch / ".clusterctl"), uid=MALLORY).returncode == 0
    assert as_stranger("mkdir", str(scratch / "theirs"), uid=MALLORY).returncode == 0
    (scratch / "theirs/root").mkdir(0o700)
    os.chown(scratch / "theirs/root", ALICE, ALICE)
    for root, reason in ((scratch, "can be written by others"), (scratch / "theirs/root", f"its owner, uid {MALLORY}")):
        alice.conf(ROOT_DIR=root)
        refused = alice.run("dispatch", str(alice.workspace("")))
        assert refused.code == 3
        assert reason in refused.err
