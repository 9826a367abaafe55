"""Limits of memory and open files; kills by the kernel, as distinguished from kills by anyone else."""

from __future__ import annotations

import contextlib
import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from clusterctl.agent.supervisor.exits import ExitClassifier, OomKills, Shortage, shortage
from clusterctl.agent.supervisor.launcher import limiter
from clusterctl.common.run_spec import Limits
from unit.agent.specs import make_context

GROUPS = Path("/sys/fs/cgroup")
# Joins the given control group and starts two programs; one exceeds the memory limit, its parent kills the other.
IN_A_GROUP = """
import os, pathlib, subprocess, sys
from clusterctl.agent.supervisor.exits import OomKills
(pathlib.Path(sys.argv[1]) / "cgroup.procs").write_text(str(os.getpid()))
kills = OomKills()
greedy = subprocess.run([sys.executable, "-c", "bytearray(400_000_000)"])
print(greedy.returncode, kills.claim(greedy.returncode))
other = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
other.kill()
print(other.wait(), kills.claim(other.returncode))
"""


class Counter:
    def __init__(self) -> None:
        self.count = 5

    def __call__(self) -> int:
        return self.count


def test_every_kill_by_the_kernel_is_attributed_to_at_most_one_process() -> None:
    counter = Counter()
    kills = OomKills(counter)
    assert not kills.claim(-9), "killed by someone else"
    counter.count += 2
    assert not kills.claim(-15)
    assert not kills.claim(1)
    assert [kills.claim(-9) for _ in range(3)] == [True, True, False]
    kills.look()
    kills.look()
    assert not kills.claim(-9)
    counter.count += 1
    kills.look()
    assert kills.claim(-9), "a process takes a while to end"


def test_a_kill_that_stays_unclaimed_is_attributed_to_other_processes() -> None:
    counter = Counter()
    kills = OomKills(counter)
    counter.count += 1
    kills.look()
    kills.look()
    assert not kills.claim(-9)


@pytest.fixture
def small_group() -> Iterator[Path]:
    """A control group with a limit of 100 MB."""
    top = GROUPS / "memory" if (GROUPS / "memory").is_dir() else GROUPS
    group, limit = top / f"clusterctl-{os.getpid()}", "memory.max"
    if (top / "memory.limit_in_bytes").exists():
        limit = "memory.limit_in_bytes"
    try:
        group.mkdir()
        (group / limit).write_text("100000000")
    except OSError as exc:
        with contextlib.suppress(OSError):
            group.rmdir()
        pytest.skip(f"no control group with a memory limit can be created here: {exc}")
    yield group
    group.rmdir()


def test_a_real_out_of_memory_kill_is_distinguished_from_another_kill(small_group: Path) -> None:
    command = [sys.executable, "-c", IN_A_GROUP, str(small_group)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180, check=True)
    assert done.stdout.splitlines() == ["-9 True", "-9 False"], done.stderr


def test_asking_for_more_open_files_than_the_node_allows_is_refused_with_its_limit() -> None:
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if most == resource.RLIM_INFINITY:
        pytest.skip("there is no limit on open files here")
    with pytest.raises(OSError, match=rf"OPEN_FILES = {most + 1} is more than this node allows, {most} \(ulimit -Hn\)"):
        limiter(Limits(open_files=most + 1))


@pytest.mark.parametrize(
    ("program", "limits", "expected"),
    [
        (
            "bytearray(10**12)",
            {"memory_limit_mb": 500},
            Shortage("out_of_memory", "MEMORY_LIMIT_MB", "out of memory: MEMORY_LIMIT_MB = 500"),
        ),
        ("import numpy; numpy.ones(10**11)", {}, Shortage("out_of_memory", None, "out of memory")),
        (
            "import os; [os.open('/dev/null', 0) for _ in range(99)]",
            {"open_files": 64},
            Shortage("open_files", "OPEN_FILES", "too many open files: OPEN_FILES = 64"),
        ),
        ("raise ValueError('MemoryError')", {"memory_limit_mb": 500}, None),
    ],
)
def test_a_program_that_hit_a_limit_is_reported_as_such(
    program: str, limits: dict[str, Any], expected: Shortage | None
) -> None:
    limit = limiter(Limits(memory_limit_mb=3000).replace(**limits))
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, preexec_fn=limit, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert shortage(done.stderr.splitlines(), Limits(**limits)) == expected


@pytest.mark.parametrize(
    ("code", "tail", "facts"),
    [
        (-11, [], {"reason": "segfault", "limit": None}),
        (1, ["MemoryError"], {"reason": "out_of_memory", "limit": "MEMORY_LIMIT_MB"}),
        (1, ["ValueError: x"], {"reason": None, "limit": None}),
    ],
)
def test_facts_in_an_exit_message_are_in_fields_too(code: int, tail: list[str], facts: dict[str, Any]) -> None:
    classifier = ExitClassifier(make_context(memory_limit_mb=500))
    child: Any = type("Child", (), {"exit_code": code, "stalled": None, "fenced": False, "hopeless": None, "peers": []})
    explanation = classifier.explain(child, tail)
    assert {name: explanation[name] for name in facts} == facts


def test_the_process_a_trainer_waited_for_in_vain_is_reported_until_the_trainer_goes_on() -> None:
    classifier = ExitClassifier(make_context())
    child: Any = type("Child", (), {"exit_code": 1, "stalled": None, "fenced": False, "hopeless": None, "peers": []})
    for pserver in (3, "evil", -1, True, *range(100)):
        classifier.receive(child, {"event": "unanswered", "pserver": pserver})
    assert len(child.peers) <= 16
    classifier.receive(child, {"event": "step", "step": 1})
    classifier.receive(child, {"event": "unanswered", "pserver": 2})
    assert classifier.explain(child, [])["peers"] == ["pserver2"]


def test_a_process_whose_run_has_different_tables_is_not_restarted() -> None:
    classifier = ExitClassifier(make_context())
    child: Any = type("Child", (), {"exit_code": 1, "stalled": None, "fenced": False, "hopeless": None, "peers": []})
    classifier.receive(child, {"event": "tables_differ", "message": "table 'w' was declared by trainer 0"})
    assert classifier.explain(child, []).get("hopeless") is True
