"""What the real kubectl does and prints: the facts on which the carrier and its messages stand."""

from __future__ import annotations

import os
import select
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from clusterctl.schedulers.kubernetes.pods import carrier
from real.kubernetes.lab import SUBMISSION, Lab
from support.processes import is_alive, kill_all, wait_until

pytestmark = [pytest.mark.kubernetes, pytest.mark.xdist_group("pods")]
POD = f"{SUBMISSION.name}-0"
ECHO = ("python3", "-uc", "import os\nwhile data := os.read(0, 65536): os.write(1, b'<' + data.strip() + b'>')")
EVERY_BYTE = bytes(range(256)) * 4096


@contextmanager
def begun(lab: Lab, *argv: str, pod: str = POD, container: str = "clusterctl") -> Iterator[subprocess.Popen[bytes]]:
    """Begin a command in a pod, once kubectl passes input on: some versions lose output until then."""
    words = [word.replace("{host}", pod) for word in carrier("default", container)]
    pipe, wait = subprocess.PIPE, ("/bin/sh", "-c", 'read -r line; exec "$@"', "sh")
    with subprocess.Popen([*words, *wait, *argv], stdin=pipe, stdout=pipe, stderr=pipe, env=lab.environment) as process:
        assert process.stdin is not None
        process.stdin.write(b"\n")
        process.stdin.flush()
        try:
            yield process
        finally:
            process.kill()


def ended(
    lab: Lab, *argv: str, data: bytes = b"", pod: str = POD, container: str = "clusterctl"
) -> tuple[int, bytes, str]:
    """Return the exit code of a command, its output and what was on stderr."""
    with begun(lab, *argv, pod=pod, container=container) as process:
        out, err = process.communicate(data, timeout=60)
    return process.returncode, out, err.decode()


def answer(process: subprocess.Popen[bytes], line: bytes) -> bytes:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(line)
    process.stdin.flush()
    ready, _, _ = select.select([process.stdout], [], [], 30)
    return os.read(process.stdout.fileno(), 65536) if ready else b""


def test_bytes_are_exchanged_before_a_line_ends(pods: Lab) -> None:
    with begun(pods, *ECHO) as process:
        assert answer(process, b"hello\n") == b"<hello>"
        assert answer(process, b"again\n") == b"<again>"


def test_every_byte_passes_both_ways(pods: Lab) -> None:
    assert ended(pods, "cat", data=EVERY_BYTE) == (0, EVERY_BYTE, "")


def test_exit_codes_are_those_of_the_command(pods: Lab) -> None:
    code, _, words = ended(pods, "sh", "-c", "echo mine >&2; exit 7")
    assert (code, words) == (7, "mine\ncommand terminated with exit code 7\n")


def test_a_command_finds_the_home_and_the_user_of_the_container(pods: Lab) -> None:
    _, out, _ = ended(pods, "sh", "-c", 'cd; pwd -P; echo "$USER"')
    assert out.decode().split() == [str(pods.home(pods.pods()[0]).resolve()), "clusterctl"]


def test_a_client_that_is_killed_ends_the_input_of_its_command_and_not_the_command(pods: Lab) -> None:
    script = "echo $$; cat >/dev/null; echo over >seen; exec sleep 300"
    with begun(pods, "sh", "-c", f"cd; {script}") as process:
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        process.kill()
    seen = pods.home(pods.pods()[0]) / "seen"
    assert wait_until(seen.exists, 20)
    assert is_alive(pid)
    kill_all([pid])


def test_output_that_breaks_off_is_followed_by_exit_code_0(pods: Lab) -> None:
    """kubernetes#124571: the stream of the exit code ends empty, which kubectl takes for success."""
    pods.cluster.cuts = [10]
    code, out, _ = ended(pods, "sh", "-c", "echo 0123456789abcdef; exit 3")
    assert (code, out) == (0, b"0123456789")


def test_the_words_for_a_pod_or_a_container_that_is_not_there(pods: Lab) -> None:
    assert 'Error from server (NotFound): pods "train-9" not found' in ended(pods, "true", pod="train-9")[2]
    assert "container nowhere is not valid for pod" in ended(pods, "true", container="nowhere")[2]


def test_the_words_for_what_is_forbidden(pods: Lab) -> None:
    pods.cluster.forbidden.add(("create", "pods/exec"))
    code, _, words = ended(pods, "true")
    assert code == 1
    assert "Error from server (Forbidden): pods/exec is forbidden" in words


def test_a_deleted_pod_comes_back_with_another_address_and_without_what_ran_in_it(pods: Lab) -> None:
    before = pods.address(POD)
    with begun(pods, "sh", "-c", "setsid sleep 300 >/dev/null 2>&1 </dev/null & echo $!") as process:
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        process.communicate(timeout=60)
    assert is_alive(pid)
    assert pods.kubectl("delete", "pod", POD, "--wait=false").code == 0  # another one takes its place
    assert wait_until(lambda: pods.address(POD) not in (None, before), 30)
    assert not is_alive(pid)
