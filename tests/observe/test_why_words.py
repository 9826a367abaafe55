"""Endings in words, by the structure of what programs say: also of programs that nobody here knows."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from clusterctl.observe.why_story import clock_offset
from clusterctl.observe.why_traceback import raised
from clusterctl.observe.why_words import ERRNOS, diagnose

BIND = "import socket; a = socket.socket(); a.bind(('127.0.0.1', 0)); socket.socket().bind(a.getsockname())"
CONNECT = "import socket; a = socket.socket(); a.bind(('127.0.0.1', 0)); socket.socket().connect(a.getsockname())"
MANY_FILES = "import resource; resource.setrlimit(7, (8, 8)); keep = [open('/dev/null') for _ in range(20)]"
BECAUSE = "try:\n    open('/nowhere/x')\nexcept OSError as e:\n    raise RuntimeError('no data') from e"
LOADER = "./a.out: error while loading shared libraries: libfoo.so.3: cannot open shared object file"
RUST = "thread 'main' panicked: Os { code: 98, kind: AddrInUse, message: \"Address already in use\" }"


@pytest.mark.skipif(sys.platform != "linux", reason="the table is of Linux, which the nodes run")
def test_the_table_of_errors_is_that_of_the_system() -> None:
    assert {name: (getattr(errno, name), os.strerror(getattr(errno, name))) for name in ERRNOS} == {
        name: (error.number, error.text) for name, error in ERRNOS.items()
    }


@pytest.mark.parametrize(
    ("program", "kind", "subject"),
    [
        ("import nosuch.module", "import_error", "nosuch"),
        ("import ctypes; ctypes.CDLL('libnosuch.so.3')", "missing_library", "libnosuch.so.3"),
        ("open('/nowhere/part-1')", "missing_file", "/nowhere/part-1"),
        ("open('/dev/full', 'w').write('x' * 100000)", "no_space", None),
        ("bytearray(1 << 62)", "out_of_memory", None),
        (BIND, "address_in_use", None),
        (CONNECT, "peer_refused", None),
        ("import os; os.kill(os.getpid(), 11)", "segfault", None),
        ("import faulthandler, os; faulthandler.enable(); os.abort()", "aborted", None),
        (MANY_FILES, "open_files", "/dev/null"),
        ("def f(:", "syntax_error", None),
        (BECAUSE, "missing_file", "/nowhere/x"),
        ("try:\n    {}['a']\nexcept KeyError:\n    open('/nowhere/x')", "missing_file", "/nowhere/x"),
        ("raise ExceptionGroup('both', [ValueError('a'), OSError(28, 'No space left on device')])", "exception", None),
        ("raise ValueError('labels must be 0 or 1')", "exception", None),
        ("raise SystemExit('no licence')", "exit", None),
        ("import sys; sys.exit(3)", "exit", None),
        ("import argparse; argparse.ArgumentParser().parse_args(['--what'])", "usage", None),
    ],
)
def test_real_programs_that_fail(tmp_path: Path, program: str, kind: str, subject: str | None) -> None:
    if "ExceptionGroup" in program and sys.version_info < (3, 11):
        pytest.skip("there are no exception groups")
    script = tmp_path / "train.py"
    script.write_text(program)
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=False, timeout=60)
    found = diagnose(done.returncode, done.stderr.splitlines())
    assert (found.kind, found.subject) == (kind, subject), done.stderr


@pytest.mark.parametrize(
    ("code", "lines", "kind"),
    [
        (139, ["Segmentation fault (core dumped)"], "segfault"),
        (137, ["Killed"], "killed"),
        (127, ["./run.sh: line 3: nvidia-smi: command not found"], "missing_program"),
        (127, [LOADER], "missing_library"),
        (1, ["/lib/libc.so.6: version `GLIBC_2.38' not found (required by ./a.out)"], "wrong_library"),
        (1, ["[W] retrying: Connection refused", "E: write: No space left on device", "bye"], "no_space"),
        (101, [RUST], "address_in_use"),
        (2, ["panic: listen tcp :7164: bind: address already in use", "goroutine 1 [running]:"], "address_in_use"),
        (-6, ["terminate called after throwing an instance of 'std::bad_alloc'"], "out_of_memory"),
        (1, ["java.net.ConnectException: Connection refused"], "peer_refused"),
        (1, ["something of its own"], "exit"),
        (1, [], "exit"),
        (-64, [], "signal"),
    ],
)
def test_programs_in_other_languages(code: int, lines: list[str], kind: str) -> None:
    assert diagnose(code, lines).kind == kind


def test_the_prefix_of_a_launcher_is_no_hindrance_and_the_place_is_the_programs_own() -> None:
    lines = [
        "[rank0]: Traceback (most recent call last):",
        '[rank0]:   File "/job/train.py", line 31, in <module>',
        "[rank0]:     model(x)",
        '[rank0]:   File "/usr/lib/python3/dist-packages/torch/nn.py", line 9, in __call__',
        "[rank0]:     return f()",
        "[rank0]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
        "W1122 some warning at exit",
    ]
    found = diagnose(1, lines)
    assert (found.kind, found.where) == ("out_of_memory", "train.py:31")


def test_of_several_tracebacks_the_last_one_counts() -> None:
    one = ["Traceback (most recent call last):", '  File "a.py", line 1, in f', "KeyError: 'x'"]
    two = ["Traceback (most recent call last):", '  File "a.py", line 9, in g', "ValueError: y"]
    assert [found.name for found in raised([*one, "carrying on", *two])] == ["ValueError"]


def test_clocks_are_compared_by_the_quickest_answer_with_the_way_halved() -> None:
    assert clock_offset([(100.0, 3700.5, 101.0), (102.0, 3702.05, 102.1)]) == pytest.approx((-3600.0, 0.05))
