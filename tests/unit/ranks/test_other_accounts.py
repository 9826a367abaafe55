"""A shared directory and a second account: what that account may write to is neither run, read nor written.

As root these tests are processes of two accounts that have a group in common; without root they are skipped.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from clusterctl.common.paths import OF_RANKS
from clusterctl.ranks.calls import CallServer
from clusterctl.ranks.errors import RankError
from clusterctl.ranks.meeting import Meeting
from clusterctl.ranks.private import check_program, open_shared
from contract.security.strangers import in_stranger, let_write, needs_root, shared_directory
from support.processes import wait_until
from unit.ranks.started import Ranks, ends
from unit.ranks.test_calls import words

ALICE, MALLORY, TEAM = 61001, 61002, 61000


@pytest.fixture
def scratch() -> Iterator[Path]:
    """A directory of root that all accounts can reach, and only root can write to."""
    with shared_directory(0o755) as directory:
        yield directory


def made(path: Path, mode: int, owner: int = ALICE, group: int = TEAM) -> Path:
    path.mkdir()
    os.chown(path, owner, group)
    path.chmod(mode)
    return path


def refusal(look: Callable[[], object]) -> str:
    """Return the error with which Alice's rank refuses something; "" if it does not."""
    reading, writing = os.pipe()

    def work() -> bool:
        try:
            look()
        except RankError as exc:
            os.write(writing, str(exc).encode())
        return True

    assert in_stranger(work, ALICE)
    os.close(writing)
    with os.fdopen(reading) as answer:
        return answer.read()


def both(shared: Path) -> set[str]:
    """Return how the first and another rank refuse a directory."""
    return {refusal(Meeting(shared, "mpi-1").make), refusal(Meeting(shared, "mpi-1").is_seen)}


@needs_root
@pytest.mark.parametrize("mode", [0o2775, 0o777])
def test_a_directory_in_which_others_can_rename_is_refused_before_anything_is_written(scratch: Path, mode: int) -> None:
    shared = made(scratch / "team", mode)
    who = "everybody" if mode & 0o002 else f"group {TEAM}"
    assert both(shared) == {f"{shared} can be written by {who}, who could replace what is in it"}
    assert list(shared.iterdir()) == []
    assert both(made(shared / "mine", 0o700)) == {f"{shared} can be written by {who}, who could replace what is in it"}


@needs_root
def test_directories_of_another_account_are_refused_wherever_they_are_on_the_way(scratch: Path) -> None:
    theirs = made(scratch / "theirs", 0o755, MALLORY)
    expected = {f"{theirs} can be written by its owner, uid {MALLORY}, who could replace what is in it"}
    assert both(theirs) == expected
    assert both(made(theirs / "mine", 0o755)) == expected


@needs_root
def test_a_link_counts_as_its_owner_and_so_does_the_way_to_its_target(scratch: Path) -> None:
    disk, team = made(scratch / "disk", 0o1777, 0), made(scratch / "team", 0o2775, 0)
    mine = made(scratch / "mine", 0o755)
    for link, owner, target in (("own", ALICE, mine), ("planted", MALLORY, mine), ("led", ALICE, team)):
        (disk / link).symlink_to(target)
        os.chown(disk / link, owner, owner, follow_symlinks=False)
    (disk / "over").symlink_to("own/../disk/own")
    os.chown(disk / "over", ALICE, ALICE, follow_symlinks=False)
    assert both(disk / "own") == both(disk / "over") == {""}
    assert both(disk / "planted") == {f"{disk / 'planted'} belongs to another account, uid {MALLORY}"}
    assert both(disk / "led") == {f"{disk / 'led'} can be written by group {TEAM}, who could replace what is in it"}


@needs_root
def test_a_sticky_directory_like_tmp_will_do_but_not_what_another_account_has_put_there(scratch: Path) -> None:
    disk = made(scratch / "disk", 0o1777, 0)
    assert refusal(Meeting(disk, "mpi-1").make) == ""
    assert (disk / OF_RANKS / "ranks" / "mpi-1").stat().st_uid == ALICE
    assert refusal(Meeting(disk, "mpi-1").is_seen) == ""
    other = made(scratch / "other", 0o1777, 0)
    theirs = made(other / OF_RANKS, 0o777, MALLORY)
    made(made(theirs / "ranks", 0o777) / "mpi-1", 0o700)
    assert both(other) == {f"{theirs} belongs to another account, or others can write to it"}


@needs_root
@pytest.mark.parametrize(("owner", "mode"), [(MALLORY, 0o644), (0, 0o666), (ALICE, 0o664)])
def test_a_conf_py_that_another_account_could_have_written_is_not_run(scratch: Path, owner: int, mode: int) -> None:
    disk = made(scratch / "disk", 0o1777, 0)
    conf = disk / "conf.py"
    conf.write_text("")
    os.chown(conf, owner, TEAM)
    conf.chmod(mode)
    refused = refusal(lambda: check_program(conf))
    assert refused.startswith(f"{conf} {'belongs to another account' if owner == MALLORY else 'can be written by '}")
    os.chown(conf, ALICE, ALICE)
    conf.chmod(0o644)
    assert refusal(lambda: check_program(conf)) == ""


@needs_root
def test_an_access_control_list_counts_as_other_accounts(scratch: Path) -> None:
    """The mode shows its mask as the bits of the group, which may have no other members."""
    disk = made(scratch / "disk", 0o700, group=ALICE)
    let_write(disk, MALLORY)
    assert in_stranger(lambda: os.access(disk, os.W_OK), MALLORY)
    assert both(disk) == {
        f"{disk} can be written by accounts in its access control list, who could replace what is in it"
    }
    home = made(scratch / "home", 0o700, group=ALICE)
    conf = home / "conf.py"
    conf.write_text("")
    os.chown(conf, ALICE, ALICE)
    let_write(conf, MALLORY)
    assert refusal(lambda: check_program(conf)).startswith(f"{conf} can be written by accounts in its access control")


@needs_root
def test_a_hard_link_to_ones_own_file_is_not_run_from_a_sticky_directory(scratch: Path) -> None:
    disk, home = made(scratch / "disk", 0o1777, 0), made(scratch / "home", 0o700)
    script = home / "cleanup.py"
    script.write_text("")
    os.chown(script, ALICE, ALICE)
    (disk / "conf.py").hardlink_to(script)  # by another account, where fs.protected_hardlinks is 0
    assert refusal(lambda: check_program(disk / "conf.py")) == (
        f"{disk / 'conf.py'} has several names, and another account may have made this one"
    )
    assert refusal(lambda: check_program(script)) == ""


@needs_root
def test_a_real_rank_runs_no_conf_py_of_a_member_of_the_group(scratch: Path) -> None:
    shared = made(scratch / "team", 0o2775, 0)
    ran = scratch / "ran"
    text = f"""
import os
os.setgroups([{TEAM}])
os.setuid({MALLORY})
open("{shared}/conf.py", "w").write("open('{ran}', 'w')")
"""
    subprocess.run([sys.executable, "-c", text], check=True)
    ranks = Ranks(made(scratch / "work", 0o755, 0))
    ranks.obey()
    done = ends([ranks.begin(0, 1, 0, 1, "--shared", str(shared))])
    assert (done[0][0], done[0][2]) == (
        1,
        f"clusterctl-rank: {shared} can be written by group {TEAM}, who could replace what is in it\n"
        "  name a directory of your own: clusterctl-rank --shared DIR\n",
    )
    assert not ran.exists()
    assert [path.name for path in shared.iterdir()] == ["conf.py"]
    shared.chmod(0o755)  # but the file is still theirs
    done = ends([ranks.begin(0, 1, 0, 1, "--shared", str(shared))])
    assert done[0][0] == 1
    assert f"{shared}/conf.py can be written by its owner, uid {MALLORY}, and would run as you" in done[0][2]
    assert not ran.exists()


def test_a_directory_that_was_swapped_is_not_read(tmp_path: Path) -> None:
    """By the account itself, as no other can."""
    (tmp_path / "calls").mkdir()
    with open_shared(tmp_path) as shared, shared.open("calls") as calls:
        calls.write("script", b"ours")
        (tmp_path / "calls").rename(tmp_path / "away")
        (tmp_path / "calls").mkdir()
        (tmp_path / "calls" / "script").write_text("theirs")
        assert calls.read("script") == b"ours"
        calls.write("answer", b"for us")
        with pytest.raises(FileNotFoundError):
            calls.names()
    assert (tmp_path / "away" / "answer").read_text() == "for us"


def call_in(calls: Path, name: str, ran: Path) -> Path:
    call = calls / name
    call.mkdir(0o700)
    (call / "script").write_text(f"echo {name} >>{ran}")
    return call


@needs_root
def test_a_call_that_another_account_could_have_made_is_reported_and_not_run(
    scratch: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    calls, ran = made(scratch / "node-0", 0o700, 0, 0), scratch / "ran"
    os.chown(call_in(calls, "theirs", ran), MALLORY, MALLORY)
    call_in(calls, "open", ran).chmod(0o777)
    os.chown(call_in(calls, "script", ran) / "script", MALLORY, MALLORY)
    (call_in(calls, "writable", ran) / "script").chmod(0o666)
    (calls / "link").symlink_to(call_in(scratch, "elsewhere", ran))
    (calls / "file").write_text("")
    (call_in(calls, "pipe", ran) / "script").unlink()
    os.mkfifo(calls / "pipe" / "script", 0o600)
    call_in(calls, "mine", ran)
    server = CallServer(calls, dict(os.environ))
    assert wait_until(lambda: not server.serve())
    server.close()
    assert ran.read_text() == "mine\n"
    reported = capfd.readouterr().err
    assert reported.count("clusterctl-rank: refused a command: ") == 7, reported
    for name in ("theirs", "open", "script/script", "writable/script", "link", "file", "pipe/script"):
        assert f"refused a command: {calls / name} " in reported


def test_a_command_does_not_go_into_a_directory_that_others_could_replace(tmp_path: Path) -> None:
    calls = tmp_path / "above" / "node-0"
    calls.mkdir(parents=True)
    (tmp_path / "above").chmod(0o777)
    done = subprocess.run(words(calls, "true"), capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, list(calls.iterdir())) == (1, [])
    assert f"{tmp_path / 'above'} can be written by everybody" in done.stderr
    (tmp_path / "above").chmod(0o755)
    calls.chmod(0o777)
    done = subprocess.run(words(calls, "true"), capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, list(calls.iterdir())) == (1, [])
    assert f"{calls} belongs to another account, or others can write to it" in done.stderr
