"""A program without `if __name__ == "__main__":` whose processes are spawned: it ends, and its error says why."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import clusterctl

ROOT = Path(clusterctl.__file__).parents[1]
CONNECT = """
import multiprocessing as mp, sys, time
from concurrent.futures import ProcessPoolExecutor
from clusterctl.runtime import connect
def square(x): return x * x
context = mp.get_context(sys.argv[1])
"""
POOL = """
with connect() as ps:
    with context.Pool(2) as pool:
        print(pool.map(square, [3]))
"""
FUTURES = """
with connect() as ps:
    with ProcessPoolExecutor(2, mp_context=context) as pool:
        print(list(pool.map(square, [3])))
"""
THREAD = """
import threading
def work():
    with connect() as ps, context.Pool(1) as pool:
        pool.map(square, [3])
thread = threading.Thread(target=work)
thread.start()
thread.join()
"""
PERSISTENT = """
def again():
    while True:
        try:
            with context.Pool(1) as pool:
                pool.map(square, [3])
        except Exception as exc:
            print("trying again", flush=True)
from clusterctl.runtime import main_guard
main_guard.GRACE_S = 0.5
with connect() as ps:
    again()
"""
GUARDED = """
def main():
    with connect() as ps:
        with context.Pool(2) as pool:
            print(pool.map(square, [3]))
if __name__ == "__main__":
    main()
"""


def run(directory: Path, program: str, method: str) -> subprocess.CompletedProcess[str]:
    (directory / "train.py").write_text(CONNECT + program)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "train.py", method]
    return subprocess.run(
        command, cwd=directory, env=environment, capture_output=True, text=True, check=False, timeout=180
    )


@pytest.mark.parametrize(
    ("program", "method"),
    [
        (POOL, "spawn"),
        pytest.param(FUTURES, "forkserver", marks=pytest.mark.slow),
        pytest.param(PERSISTENT, "spawn", marks=pytest.mark.slow),
    ],
    ids=["pool", "futures-forkserver", "persistent"],
)
def test_a_program_that_its_own_processes_import_ends_with_an_error_that_shows_the_guard(
    tmp_path: Path, program: str, method: str
) -> None:
    done = run(tmp_path, program, method)
    assert done.returncode == 1
    assert "MainGuardError: multiprocessing imported the program again in a new process" in done.stderr
    assert 'if __name__ == "__main__":' in done.stderr


@pytest.mark.slow
def test_one_that_connects_in_another_thread_is_killed_with_the_same_words(tmp_path: Path) -> None:
    done = run(tmp_path, THREAD, "spawn")
    assert done.returncode == -signal.SIGKILL
    assert "MainGuardError: multiprocessing imported the program again in a new process" in done.stderr


@pytest.mark.slow
def test_a_guarded_program_and_one_that_forks_are_left_alone(tmp_path: Path) -> None:
    for program, method in ((GUARDED, "spawn"), (GUARDED, "forkserver"), (POOL, "fork")):
        done = run(tmp_path, program, method)
        assert (done.returncode, done.stdout) == (0, "[9]\n"), done.stderr
