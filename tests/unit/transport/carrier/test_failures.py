"""What goes wrong with carriers, and how it is named."""

from __future__ import annotations

import os
import re
import resource
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from clusterctl.errors import ConfigError, NodeError, UnreachableError
from clusterctl.transport import Transport, command
from clusterctl.transport.carrier import carriers
from clusterctl.transport.carrier.failures import TABLE
from support.nodes import TestNode, TestSettings
from support.processes import wait_until
from unit.transport.carrier.test_running import by, script, sh

TRUE = command("true")


@pytest.fixture
def transport() -> Iterator[Transport]:
    with Transport(TestSettings(None, None, None)) as made:
        yield made
    assert wait_until(lambda: not any(thread.name == "end-of-a-carrier" for thread in threading.enumerate()), 10)


def named(directory: Path, name: str, text: str) -> TestNode:
    """Return a node whose carrier has the name of a known program."""
    path = directory / name
    path.write_text(text)
    path.chmod(0o755)
    return TestNode("node0", None, "n1", via=(str(path), "{host}"))


def saying(directory: Path, name: str, words: str, code: int) -> TestNode:
    (directory / "words").write_text(words)
    return named(directory, name, f"#!/bin/sh\ncat {directory}/words >&2\nexit {code}\n")


def test_a_carrier_that_is_not_found_is_named_with_the_fix(transport: Transport) -> None:
    with pytest.raises(UnreachableError, match="cannot run dockr, the carrier in VIA: No such file") as caught:
        transport.run(TestNode("node0", None, "n1", via=("dockr", "exec", "-i", "{host}")), TRUE)
    assert caught.value.node == "node0"
    assert caught.value.hint == "install dockr on this machine, or write its full path in VIA"


def test_a_carrier_that_may_not_be_executed_is_named(transport: Transport, tmp_path: Path) -> None:
    (tmp_path / "plain").touch()
    with pytest.raises(UnreachableError, match=r"cannot run .*/plain, the carrier in VIA: Permission denied"):
        transport.run(TestNode("node0", None, "n1", via=(str(tmp_path / "plain"), "{host}")), TRUE)


#: As the programs print it: some were seen, others come from their sources.
EARLY = [
    ("docker", 1, "Error: No such container: n1", "docker: there is no container n1"),
    ("docker", 1, "Error response from daemon: No such container: n1", "docker: there is no container n1"),
    ("podman", 125, 'Error: no container with name or ID "n1" found: no such container', "there is no container n1"),
    ("docker", 1, "Error response from daemon: container 4c01 is not running", "the container n1 is not running"),
    ("docker", 1, "Error response from daemon: Container n1 is paused, unpause the container", "n1 is paused"),
    ("docker", 1, "Cannot connect to the Docker daemon at unix:///run/docker.sock. Is it running?", "does not answer"),
    ("docker", 1, "permission denied while trying to connect to the Docker daemon socket", "may not use the Docker"),
    ("docker", 1, "the input device is not a TTY", "it was asked for a terminal"),
    (
        "docker",
        127,
        'OCI runtime exec failed: exec failed: unable to start container process: exec: "/bin/sh": stat /bin/sh: '
        "no such file or directory: unknown",
        "n1 has no /bin/sh",
    ),
    ("kubectl", 1, 'Error from server (NotFound): pods "n1" not found', "kubectl: there is no pod n1"),
    (
        "kubectl",
        1,
        'Error from server (Forbidden): pods "n1" is forbidden: User "me" cannot create resource "pods/exec"',
        "kubectl: this account may not run commands in the pod n1",
    ),
    ("kubectl", 1, "Error from server (BadRequest): pod n1 does not have a host assigned", "pod n1 has not started"),
    (
        "kubectl",
        1,
        "Error from server: error dialing backend: dial tcp 10.0.0.5:10250: i/o timeout",
        "kubectl: the machine of the pod n1 does not answer",
    ),
    ("kubectl", 1, "error: You must be logged in to the server (Unauthorized)", "does not accept this account"),
    ("kubectl", 1, 'error: unable to upgrade connection: container not found ("main")', "is not running"),
    ("kubectl", 1, "error: cannot exec into a container in a completed pod; current phase is Succeeded", "not running"),
    (
        "kubectl",
        1,
        "The connection to the server 127.0.0.1:6443 was refused - did you specify the right host or port?",
        "the API server does not answer",
    ),
    (
        "srun",
        1,
        "srun: error: Unable to confirm allocation for job 77: Invalid job id specified\nsrun: Check SLURM_JOB_ID",
        "srun: there is no allocation: the Slurm job 77 is not running",
    ),
    (
        "srun",
        1,
        "srun: error: Unable to create step for job 77: Job/step already completing or completed",
        "no allocat",
    ),
    ("srun", 168, "srun: error: Task launch for StepId=2.5 failed on node n1: Job credential revoked", "no allocation"),
    (
        "srun",
        1,
        "srun: error: Unable to create step for job 7: Required node not available (down, drained)",
        "n1 is down",
    ),
    (
        "srun",
        1,
        "srun: error: Unable to create step for job 5: Requested node configuration is not available",
        "not a node",
    ),
    ("srun", 1, "srun: error: Unable to create step for job 5: Requested nodes are busy", "in use by another step"),
    ("srun", 1, "srun: error: Unable to create step for job 5: Access/permission denied", "Slurm denied access"),
    ("srun", 1, "srun: error: Unable to contact slurm controller (connect failure)", "controller does not answer"),
    ("mpirun", 1, "There are not enough slots available in the system to satisfy the 1", "no slot for a command on n1"),
    ("mpirun", 1, "PRTE has lost communication with a remote daemon: the daemon died", "no daemon of Open MPI"),
    ("ssh", 255, "me@n1: Permission denied (publickey,password).", "ssh: n1 denied the login"),
    ("ssh", 255, "Host key verification failed.", "does not know the host key of n1"),
    ("ssh", 255, "ssh: Could not resolve hostname n1: Name or service not known", "cannot resolve the host name n1"),
    ("ssh", 255, "ssh: connect to host n1 port 22: Connection refused", "ssh: n1 does not answer"),
]


@pytest.mark.parametrize(("name", "code", "words", "message"), EARLY, ids=[f"{one[0]}-{one[3]}" for one in EARLY])
def test_a_failure_before_the_command_begins_is_named_with_a_fix(
    transport: Transport, tmp_path: Path, name: str, code: int, words: str, message: str
) -> None:
    with pytest.raises(UnreachableError) as caught:
        transport.run(saying(tmp_path, name, words, code), TRUE)
    assert message in caught.value.message
    assert caught.value.message.startswith(f"{name}: ")
    assert caught.value.hint
    assert "{" not in caught.value.message + caught.value.hint
    assert caught.value.details["reason"] == "carrier"


def test_unknown_words_are_passed_on(transport: Transport, tmp_path: Path) -> None:
    with pytest.raises(UnreachableError) as caught:
        transport.run(saying(tmp_path, "docker", "the moon is\nfull", 125), TRUE)
    assert caught.value.message == "docker did not start a command (exit code 125): the moon is full"


LATE = [
    (
        "srun",
        "slurmstepd: error: *** STEP 5.3 ON n1 CANCELLED AT 2026-01-01T10:00:00 DUE TO TIME LIMIT ***",
        "time limit",
    ),
    ("kubectl", "error: unexpected EOF", "lost the connection to the pod n1"),
    ("srun", "srun: error: Node failure on n1", "the Slurm node n1 is down"),
    ("srun", "slurmstepd: error: *** STEP 5.3 ON n1 CANCELLED AT 2026-01-01T10:00:00 DUE TO PREEMPTION ***", "preempt"),
    ("srun", "slurmstepd-n1: error: *** STEP 5.3 ON n1 CANCELLED AT 2026-01-01T10:00:00 ***", "step was cancelled"),
    ("ssh", "client_loop: send disconnect: Broken pipe", "lost the connection to n1"),
]


@pytest.mark.parametrize(("name", "words", "message"), LATE)
def test_a_failure_after_the_command_has_begun_is_named(
    transport: Transport, tmp_path: Path, name: str, words: str, message: str
) -> None:
    run = 'shift; [ "$#" = 1 ] && set -- sh -c "$1"; "$@"'
    node = named(tmp_path, name, f"#!/bin/sh\n{run}\necho '{words}' >&2; exit 255\n")
    with pytest.raises(UnreachableError) as caught:
        transport.run(node, command("echo", "half"))
    assert message in caught.value.message
    assert caught.value.details["reason"] == "lost"


def test_the_words_of_a_command_are_not_taken_for_those_of_the_carrier(transport: Transport, tmp_path: Path) -> None:
    node = named(tmp_path, "srun", '#!/bin/sh\nshift; exec "$@"\n')
    done = transport.run(node, sh("echo 'the job was stopped DUE TO TIME LIMIT' >&2; exit 1"))
    assert done.exit_code == 1


def test_success_before_the_command_begins_is_a_lost_connection(transport: Transport, tmp_path: Path) -> None:
    with pytest.raises(UnreachableError, match="lost the connection to box over carrier") as caught:
        transport.run(by(tmp_path, "#!/bin/sh\nexit 0\n"), TRUE)
    assert caught.value.details["reason"] == "lost"


def test_a_carrier_that_hangs_is_named_with_its_words_and_ended(
    transport: Transport, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(carriers, "START_S", 0.5)
    node = by(tmp_path, "#!/bin/sh\necho waiting for resources >&2\nexec sleep 100\n")
    with pytest.raises(UnreachableError) as caught:
        transport.run(node, TRUE)
    assert caught.value.message == "carrier did not start a command within 0.5 s: waiting for resources"
    assert transport._carriers()._ends


def test_a_carrier_that_floods_standard_error_before_the_command_does_not_block(
    transport: Transport, tmp_path: Path
) -> None:
    node = by(tmp_path, '#!/bin/sh\nshift; head -c 10000000 /dev/zero >&2; exec "$@"\n')
    assert transport.run(node, command("echo", "x")).stdout == b"x\n"


def test_a_carrier_that_prints_something_else_for_ever_is_an_error(transport: Transport, tmp_path: Path) -> None:
    with pytest.raises(UnreachableError, match="carrier did not start a command: y y y"):
        transport.run(by(tmp_path, "#!/bin/sh\nexec yes\n"), TRUE)


def test_what_is_printed_before_the_command_is_not_its_output(transport: Transport, tmp_path: Path) -> None:
    for banner in ("echo Welcome", "printf 'Welcome> '", "printf 'a\\r\\n\\r\\n'", "head -c 9000 /dev/zero"):
        node = by(tmp_path, f'#!/bin/sh\nshift; {banner}; exec "$@"\n')
        assert transport.run(node, command("echo", "x")).stdout == b"x\n"


def test_a_carrier_with_a_terminal_is_refused(transport: Transport, tmp_path: Path) -> None:
    program = "import pty, sys; pty.spawn(sys.argv[2:])"
    node = by(tmp_path, f'#!/bin/sh\nexec {sys.executable} -c "{program}" "$@"\n')
    with pytest.raises(NodeError, match="runs commands on a terminal"):
        transport.run(node, TRUE)


def test_ssh_gets_the_command_as_one_word_and_others_as_three(transport: Transport, tmp_path: Path) -> None:
    counting = '#!/bin/sh\necho "$# words" >&2; [ "$#" = 2 ] && exec sh -c "$2"; shift; exec "$@"\n'
    tricky = command("printf", "%s|", "a'b", "$HOME", "c\nd")
    for name, count in (("ssh", 2), ("other", 4)):
        done = transport.run(named(tmp_path, name, counting), tricky)
        assert done.stderr == b"%d words\n" % count
        assert done.stdout == b"a'b|$HOME|c\nd|"


def test_a_limit_of_this_machine_is_named_with_its_own_fix(transport: Transport) -> None:
    transport._carriers()  # loads its modules
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest_free = os.open(os.devnull, os.O_RDONLY)
    os.close(lowest_free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free, hard))
    try:
        with pytest.raises(UnreachableError, match="Too many open files") as caught:
            transport.run(TestNode("node0", None, "n1", via=("cat", "{host}")), TRUE)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert caught.value.hint is not None
    assert "ulimit -n" in caught.value.hint


def test_a_carrier_may_not_ask(transport: Transport, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has no terminal, and ssh opens no window either."""
    asking = '#!/bin/sh\n(exec </dev/tty) 2>/dev/null && echo terminal; env | grep ^SSH_; shift; exec "$@"\n'
    monkeypatch.setenv("SSH_CONNECTION", "10.0.0.1 1 10.0.0.2 22")
    monkeypatch.setenv("SSH_ASKPASS", "/bin/false")
    monkeypatch.setenv("DISPLAY", ":0")
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    path = script(tmp_path, asking.replace("; env", f"; env >{tmp_path}/env; true"))
    transport.run(TestNode("node0", None, "box", via=(path, "{host}")), TRUE)
    names = {line.partition("=")[0] for line in (tmp_path / "env").read_text().splitlines()}
    assert {"SSH_ASKPASS_REQUIRE"} == {name for name in names if name.startswith("SSH_")} - {"SSH_ASKPASS"}
    assert "DISPLAY" not in names


def test_local_gives_a_command_what_a_login_gives(transport: Transport, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET", "x")
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    monkeypatch.setenv("SSH_CONNECTION", "10.0.0.1 1 10.0.0.2 22")
    here = TestNode("node0", None, "box", via="local")
    names = {line.partition(b"=")[0] for line in transport.run(here, command("env")).stdout.splitlines()}
    assert {b"HOME", b"PATH"} <= names
    assert not {b"SECRET", b"OMP_NUM_THREADS", b"SSH_CONNECTION"} & names


def test_what_needs_ssh_says_so(transport: Transport) -> None:
    here = TestNode("node0", None, "box", via="local")
    for call in (transport.link, transport.target, transport.scan_host_key):
        with pytest.raises(ConfigError, match="this needs SSH, but VIA reaches box by local"):
            call(here)
    transport.warm_up([here])
    assert transport._made_pool is None


def test_every_entry_of_the_table_has_an_example() -> None:
    examples = [(name, words) for name, _, words, _ in EARLY] + [(name, words) for name, words, _ in LATE]
    assert [
        entry.pattern
        for entry in TABLE
        if not any(name in entry.carriers and re.search(entry.pattern, words) for name, words in examples)
    ] == []
