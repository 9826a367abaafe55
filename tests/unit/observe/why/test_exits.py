"""Diagnoses of exits by the structure of the output, including that of unknown programs."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from clusterctl.observe.why.errno_and_signals import ERRNOS
from clusterctl.observe.why.exits import diagnose
from clusterctl.observe.why.tracebacks import DIRECT, excerpt

BIND = "import socket; a = socket.socket(); a.bind(('127.0.0.1', 0)); socket.socket().bind(a.getsockname())"
FRAMES = ["Traceback (most recent call last):", '  File "/job/train.py", line 3, in main', "    f()"]
BECAUSE = "try:\n    open('/nowhere/x')\nexcept OSError as e:\n    raise RuntimeError('no data') from e"
FALLBACK = """
def read():
    return int('7,5')
try:
    import nosuchengine
except ImportError:
    read()"""
CLEAN_UP = """
class File:
    def __enter__(self): return self
    def __exit__(self, *about): self.nosuch.close()
with File(): open('/nowhere/x')"""
TOOL = """
import subprocess, sys
subprocess.run([sys.executable, "-c", "open('/nowhere/vocab')"], check=True)"""
LOADER = "./a.out: error while loading shared libraries: libfoo.so.3: cannot open shared object file"
CALL = "\tat job.Train.main(Train.java:1)"
JAVA_CAUSE = "Caused by: java.io.FileNotFoundException: /nowhere/x (No such file or directory)"


@pytest.mark.skipif(sys.platform != "linux", reason="the table is that of Linux, which the nodes run")
def test_the_errno_table_matches_the_system() -> None:
    assert {name: (getattr(errno, name), os.strerror(getattr(errno, name))) for name in ERRNOS} == {
        name: (error.number, error.text) for name, error in ERRNOS.items()
    }


@pytest.mark.parametrize(
    ("program", "kind", "subject"),
    [
        ("import nosuch.module", "import_error", "nosuch"),
        ("open('/nowhere/part-1')", "missing_file", "/nowhere/part-1"),
        (BIND, "address_in_use", None),
        ("import os; os.kill(os.getpid(), 11)", "segfault", None),
        ("def f(:", "syntax_error", None),
        (BECAUSE, "missing_file", "/nowhere/x"),
        ("try:\n    {}['a']\nexcept KeyError:\n    open('/nowhere/x')", "missing_file", "/nowhere/x"),
        ("raise ExceptionGroup('both', [ValueError('a'), OSError(28, 'No space left on device')])", "exception", None),
        (FALLBACK, "exception", None),
        ("try:\n    import nosuchengine\nexcept ImportError:\n    int('7,5')", "exception", None),
        ("try:\n    open('/nowhere/x')\nexcept OSError as e:\n    loger.warning(e)", "missing_file", "/nowhere/x"),
        (
            "try:\n    open('/nowhere/x')\nexcept OSError:\n    raise RuntimeError('no data')",
            "missing_file",
            "/nowhere/x",
        ),
        ("import subprocess; subprocess.run(['nosuchtool'])", "missing_program", "nosuchtool"),
        (TOOL, "missing_file", "/nowhere/vocab"),
        (CLEAN_UP, "missing_file", "/nowhere/x"),
        ("raise SystemExit('no licence')", "exit", None),
        ("import argparse; argparse.ArgumentParser().parse_args(['--what'])", "usage", None),
    ],
)
def test_failures_of_real_programs_are_diagnosed(tmp_path: Path, program: str, kind: str, subject: str | None) -> None:
    if "ExceptionGroup" in program and sys.version_info < (3, 11):
        pytest.skip("there are no exception groups")
    script = tmp_path / "train.py"
    script.write_text(program)
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=False, timeout=180)
    diagnosis = diagnose(done.returncode, done.stderr.splitlines())
    assert (diagnosis.kind, diagnosis.subject) == (kind, subject), done.stderr


@pytest.mark.parametrize(
    ("code", "lines", "kind"),
    [
        (137, ["Killed"], "killed"),
        (127, ["./run.sh: line 3: nvidia-smi: command not found"], "missing_program"),
        (127, [LOADER], "missing_library"),
        (1, ["/lib/libc.so.6: version `GLIBC_2.38' not found (required by ./a.out)"], "wrong_library"),
        (1, ["[W] retrying: Connection refused", "E: write: No space left on device", "bye"], "no_space"),
        (2, ["panic: listen tcp :7164: bind: address already in use", "goroutine 1 [running]:"], "address_in_use"),
        (1, ['Exception in thread "main" java.lang.OutOfMemoryError: Java heap space', *[CALL] * 20], "out_of_memory"),
        (1, ['Exception in thread "main" java.lang.RuntimeException: load', CALL, JAVA_CAUSE, CALL], "missing_file"),
        (1, ["t.js:1", "a.weights", "^", "TypeError: Cannot read properties of undefined", CALL], "exception"),
        (
            1,
            ["Error: connect ECONNREFUSED 127.0.0.1:9", CALL, "  errno: -111,", "  code: 'ECONNREFUSED',"],
            "peer_refused",
        ),
        (-6, ["terminate called after throwing", "  what():  cannot parse config.ini line 3"], "aborted"),
        (1, ["something of its own"], "exit"),
        (-64, [], "signal"),
    ],
)
def test_failures_of_programs_in_other_languages_are_diagnosed(code: int, lines: list[str], kind: str) -> None:
    assert diagnose(code, lines).kind == kind


GPU_MEMORY = "out of memory on a GPU"
OLD_TORCH = "RuntimeError: CUDA out of memory. Tried to allocate 20.00 MiB (GPU 0; 39.59 GiB total capacity; 37.10 GiB)"
TENSORFLOW = (
    "tensorflow.python.framework.errors_impl.ResourceExhaustedError: OOM when allocating tensor with shape[256,64,9,9] "
    "and type float on /job:localhost/replica:0/task:0/device:GPU:0 by allocator GPU_0_bfc"
)
PADDLE = (
    "ResourceExhaustedError: ",
    "",
    "Out of memory error on GPU 0. Cannot allocate 98.000244MB memory on GPU 0, 6.000000GB memory has been allocated.",
    "",
    "Please check whether there is any other process using GPU 0.",
)


@pytest.mark.parametrize(
    ("lines", "kind", "words"),
    [
        ([*FRAMES, OLD_TORCH], "out_of_memory", GPU_MEMORY),
        ([*FRAMES, "RuntimeError: cuDNN error: CUDNN_STATUS_ALLOC_FAILED"], "out_of_memory", GPU_MEMORY),
        ([*FRAMES, TENSORFLOW], "out_of_memory", GPU_MEMORY),
        (PADDLE, "out_of_memory", GPU_MEMORY),
        ([*FRAMES, "AssertionError: Torch not compiled with CUDA enabled"], "wrong_library", "built without CUDA"),
        ([*FRAMES, "RuntimeError: No CUDA GPUs are available"], "device", "sees no GPU"),
        ([*FRAMES, "RuntimeError: CUDA error: invalid device ordinal"], "device", "that it does not see"),
        (["Failed to initialize NVML: Driver/library version mismatch"], "device", "no usable GPU driver"),
        ([*FRAMES, "ValueError: no rule for 'CUDA out of memory. Tried to allocate'"], "exception", "ValueError"),
        (["looked for 'CUDA error' in old.log, found none"], "exit", "old.log"),
    ],
)
def test_failures_of_gpus_are_diagnosed(lines: Sequence[str], kind: str, words: str) -> None:
    diagnosis = diagnose(1, lines)
    assert (diagnosis.kind, words in diagnosis.words) == (kind, True), diagnosis


NO_MODULE = "ModuleNotFoundError: No module named 'nosuch'"
MPIRUN = [
    "-" * 74,
    "Primary job  terminated normally, but 1 process returned",
    "a non-zero exit code. Per user-direction, the job has been aborted.",
    "-" * 74,
    "mpirun noticed that the job aborted, but has no info as to the process that caused that situation.",
]


@pytest.mark.parametrize(
    ("lines", "kind"),
    [
        (
            ["UnicodeDecodeError: 'utf-8' codec can't decode byte 0xe4 in position 9: unexpected end of data"],
            "exception",
        ),
        (["ImportError: bad magic number in 'utils': b'\\x03\\xf3'"], "import_error"),
        (["RuntimeError: Invalid data stream id: 7"], "exception"),
        (["yaml.scanner.ScannerError: while scanning: found unexpected end of file"], "exception"),
        (["pymongo.errors.OperationFailure: Authentication failed., full error: {}"], "exception"),
        (["RuntimeError: output directory has bad permissions"], "exception"),
        (["RuntimeError: failed to lock memory pages"], "exception"),
        (["RuntimeError: the connection was closed by host policy"], "exception"),
        (["RuntimeError: Invalid magic number; corrupt file?"], "wrong_file"),
        (["paramiko.ssh_exception.AuthenticationException: Authentication failed."], "permission"),
        (["RuntimeError: cannot acquire the lock"], "busy"),
        (["RuntimeError: Connection closed by peer [10.0.0.7]:21894"], "peer_gone"),
        ([NO_MODULE, "make: *** [Makefile:3: train] Error 1"], "import_error"),
        ([NO_MODULE, "slurmstepd: error: task 0 exit"], "import_error"),
        ([NO_MODULE, "2026-05-11 10:22:31,001 - pool - INFO - closed 3 connections"], "import_error"),
        ([NO_MODULE, *MPIRUN], "import_error"),
        (["RuntimeError: CUDA out of memory. Tried to allocate 2 MiB", "make: *** [train] Error 1"], "out_of_memory"),
    ],
)
def test_no_more_is_read_into_the_output_of_an_exception_than_it_says(lines: list[str], kind: str) -> None:
    assert diagnose(3, [*FRAMES, *lines]).kind == kind


@pytest.mark.parametrize(
    ("lines", "kind"),
    [
        (["run.sh: line 10: syntax error: unexpected end of file"], "exit"),
        (["job status: Aborted"], "exit"),
        (["INFO could not resolve host metrics.local, telemetry off", "ERROR bad config value: lr"], "exit"),
        (["INFO Connection closed by peer, reconnecting", "epoch 3", "error: loss diverged"], "exit"),
        (["2026-05-11T10:22:31 [info] Connection refused", "no licence for node2"], "exit"),
        (["[W511 10:22:31.1 socket.cpp:697] [c10d] Connection refused", "no licence for node2"], "exit"),
        (["@    WARNING: UNPROTECTED PRIVATE KEY FILE!    @", "This private key will be ignored."], "permission"),
        (["error: could not lock config file .git/config: File exists"], "busy"),
        (["WARNING: connect: Connection refused, retrying", "giving up after 3 attempts"], "peer_refused"),
        (["gzip: part-1.gz: unexpected end of file"], "wrong_file"),
        (['Error: status: Cancelled, message: "the server is going away"'], "peer_gone"),
        (["errno = " + "1" * 5000], "exit"),
    ],
)
def test_no_more_is_read_into_last_lines_than_they_say(lines: list[str], kind: str) -> None:
    assert diagnose(3, lines).kind == kind


def test_an_exception_before_other_last_words_is_pointed_at() -> None:
    diagnosis = diagnose(5, [*FRAMES, NO_MODULE, "quota: 0 credits left"])
    assert diagnosis.words == '"quota: 0 credits left"'
    assert diagnosis.advice.endswith("and the exception before them")


REPEATED = (
    *(".", "/", "x", r"\x00", "\u2018", "\u201c", "avro ", "zstd: ", "gzip: ", "xz: ", "index.lock "),
    *("monitoredBarrier ", "OOM when allocating tensor ", "DataLoader worker "),
)


@pytest.mark.slow
def test_long_lines_take_linear_time() -> None:
    """Within a limit of CPU time that a search that begins anew at each character would exceed."""
    program = (
        "import resource, sys\nresource.setrlimit(resource.RLIMIT_CPU, (20, 20))\n"
        "from clusterctl.observe.why.exceptions import of_exception\n"
        "from clusterctl.observe.why.tracebacks import RaisedException\n"
        "for unit in sys.argv[1:]:\n"
        "    text = unit * ((1 << 15) // len(unit))\n"
        "    message = f'cannot identify image file : {text}: No such file or directory'\n"
        "    of_exception(RaisedException('OSError', message))\n"
        "print('done')\n"
    )
    done = subprocess.run([sys.executable, "-c", program, *REPEATED], capture_output=True, text=True, check=False)
    assert done.stdout == "done\n", done.stderr


def test_a_launcher_prefix_is_ignored_and_the_location_is_in_the_program_itself() -> None:
    lines = [
        "[rank0]: Traceback (most recent call last):",
        '[rank0]:   File "/job/train.py", line 31, in <module>',
        "[rank0]:     model(x)",
        '[rank0]:   File "/usr/lib/python3/dist-packages/torch/nn.py", line 9, in __call__',
        "[rank0]:     return f()",
        "[rank0]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
        "W1122 some warning at exit",
    ]
    diagnosis = diagnose(1, lines)
    assert (diagnosis.kind, diagnosis.where) == ("out_of_memory", "train.py:31")


def test_the_last_line_is_quoted_when_nothing_in_the_output_is_recognized() -> None:
    assert diagnose(1, ["no licence for node2"]).words == '"no licence for node2"'
    diagnosis = diagnose(2, ["failed: no shard 5", "goroutine 1 [running]:", "exit status 2"])
    assert diagnosis.words == '"failed: no shard 5"'
    assert "(config.ini: wrong)" in diagnose(-6, ["config.ini: fine", "terminate: (config.ini: wrong)"]).words


def test_the_original_of_a_chain_of_exceptions_is_reported_with_what_it_led_to() -> None:
    lines = [*FRAMES[:2], "KeyError: 'gpu'", "", f"{DIRECT} of the following exception:", "", *FRAMES]
    diagnosis = diagnose(1, [*lines, "RuntimeError: training setup failed"])
    assert (diagnosis.words, diagnosis.error) == (
        "KeyError: 'gpu', which led to RuntimeError: training setup failed",
        "KeyError: 'gpu'",
    )


def test_calls_inside_libraries_are_folded_and_the_programs_own_are_shown() -> None:
    deep = [
        line
        for i in range(30)
        for line in (f'  File "/x/lib/python3.11/site-packages/a.py", line {i}, in f', "    f()")
    ]
    lines = [*(f"pass {i}" for i in range(40)), *FRAMES, *deep, "ValueError: x", *(f"bye {i}" for i in range(3))]
    shown = [text for _, text in excerpt([(float(i), line) for i, line in enumerate(lines)])]
    assert shown == [
        "pass 38",
        "pass 39",
        *FRAMES,
        "  ... 30 calls inside libraries",
        "ValueError: x",
        "bye 0",
        "bye 1",
        "bye 2",
    ]
