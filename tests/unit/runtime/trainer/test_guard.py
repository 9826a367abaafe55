"""A session belongs to the process and the thread that called `connect()`."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from clusterctl.runtime import SGD, connect
from clusterctl.runtime.errors import UseError
from clusterctl.runtime.trainer.session import Session

CALLS: dict[str, Callable[[Session, Any, Any], object]] = {
    "ps.dense": lambda ps, w, e: ps.dense("v", 3, SGD(0.1)),
    "ps.embedding": lambda ps, w, e: ps.embedding("f", 2, SGD(0.1)),
    "ps.steps": lambda ps, w, e: ps.steps(lambda pass_, rng: [1], passes=1),
    "ps.push": lambda ps, w, e: ps.push({}, samples=1),
    "ps.save": lambda ps, w, e: ps.save("mine"),
    "pull of 'w'": lambda ps, w, e: w.pull(),
    "pull of 'e'": lambda ps, w, e: e.pull([1, 2]),
}
#: Threads and forks call anything at random; ARGV has the seed. It ends with 0 unless something else than UseError is
#: raised.
WALK = """
import os, random, sys, threading
from clusterctl.runtime import SGD, connect
from clusterctl.runtime.errors import UseError

chance = random.Random(sys.argv[1])
failed = []

def walk(ps, w, e, chance, own):
    steps = None
    for _ in range(60):
        try:
            call = chance.randrange(9)
            if call == 0: ps.dense(f"w{chance.randrange(3)}", 4, SGD(0.1))
            elif call == 1: ps.embedding(f"e{chance.randrange(3)}", 2, SGD(0.1))
            elif call == 2: e.pull([chance.randrange(-9, 9) for _ in range(chance.randrange(5))])
            elif call == 3: w.pull()
            elif call == 4: ps.log(x=chance.random())
            elif call == 5: ps.save(f"tag{chance.randrange(4)}")
            elif call == 6: steps = ps.steps(lambda pass_, rng: [1, 2, 3], passes=1)
            elif call == 7 and steps is not None: next(steps, None)
            else: ps.push({w: w.value, e: ([1, 2], [[1, 2], [3, 4]])}, samples=1)
        except UseError:
            pass
        except BaseException as exc:
            failed.append(repr(exc))
            raise

with connect() as ps:
    w, e = ps.dense("w", 4, SGD(0.1)), ps.embedding("e", 2, SGD(0.1))
    threads = [threading.Thread(target=walk, args=(ps, w, e, random.Random(chance.random()), False)) for _ in range(2)]
    for thread in threads: thread.start()
    walk(ps, w, e, chance, True)
    for thread in threads: thread.join()
    child = os.fork()
    if child == 0:
        walk(ps, w, e, chance, False)
        sys.exit(9 if failed else 0)  # through `with`, which must not leave the run
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    walk(ps, w, e, chance, True)
walk(ps, w, e, chance, False)
sys.exit(8 if failed else 0)
"""


@pytest.fixture
def session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Session, Any, Any]]:
    monkeypatch.chdir(tmp_path)
    with connect() as ps:
        yield ps, ps.dense("w", 4, SGD(0.1)), ps.embedding("e", 2, SGD(0.1))


def misuse(call: Callable[[], object]) -> str:
    with pytest.raises(UseError) as caught:
        call()
    return str(caught.value)


def misuse_all(*session: Any) -> dict[str, str]:
    """Return the errors by call."""
    return {name: misuse(lambda call=call: call(*session)) for name, call in CALLS.items()}


def test_another_thread_may_not_use_a_session(session: tuple[Session, Any, Any]) -> None:
    errors: dict[str, str] = {}
    other = threading.Thread(target=lambda: errors.update(misuse_all(*session)), name="loader-3")
    other.start()
    other.join()
    assert errors.keys() == CALLS.keys()
    for name, error in errors.items():
        assert error.startswith(f"{name} in thread 'loader-3', but the session belongs to thread 'MainThread'")
    session[1].pull()


def test_a_forked_process_may_not_use_a_session(session: tuple[Session, Any, Any]) -> None:
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(write_end, json.dumps(misuse_all(*session)).encode())
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    errors = json.loads(os.read(read_end, 65_536))
    os.close(read_end)
    os.close(write_end)
    assert errors.keys() == CALLS.keys()
    for name, error in errors.items():
        assert error.startswith(f"{name} in process {child}, but the session belongs to process {os.getpid()}")
    session[1].pull()


def test_a_session_that_has_ended_may_not_be_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with connect() as ps:
        w, e = ps.dense("w", 4, SGD(0.1)), ps.embedding("e", 2, SGD(0.1))
    for name, error in misuse_all(ps, w, e).items():
        assert error.startswith(f"{name} after the end of the session")
    assert re.fullmatch(r"\d \d", f"{ps.rank} {ps.trainers}")


def test_any_thread_may_log(session: tuple[Session, Any, Any]) -> None:
    ps = session[0]
    threads = [threading.Thread(target=lambda: [ps.log(x=1.0) for _ in range(1000)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (group,) = ps._progress._logbook._groups.values()
    assert group.count == group.weight == 4000 - 1  # the first one was sent at once


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 3))])
def test_a_random_walk_through_the_api_never_ends_the_interpreter(tmp_path: Path, seed: int) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WALK, str(seed)], cwd=tmp_path, capture_output=True, text=True, timeout=180, check=False
    )
    assert done.returncode == 0, done.stderr
