"""The tool for seeded faults: nothing that a fault leaves behind stays, and every block is found."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from seeded.faults import Fault, files_reaching, main, read_faults
from seeded.reach import block_of, blocks, put_probes
from seeded.trees import CAGE, Tree
from support.processes import is_alive

SOURCE = '''"""A module."""

from __future__ import annotations


class Thing:
    def size(self, n: int) -> int:
        """Its size."""
        if n > 3:
            return 1
        elif n > 2:
            return 2
        else:
            n += 1
        for _ in range(n):
            try:
                n = int("x")
            except ValueError:
                continue
        return n


def stub() -> None: ...
'''
LEAVE = """
import os, subprocess, sys
child = subprocess.Popen(["sleep", "600"], start_new_session=True)
print(child.pid, flush=True)
"""


@pytest.mark.parametrize(("last", "code"), [("os._exit(3)", 3), ("import time; time.sleep(600)", 124)])
def test_a_cage_leaves_no_process_and_returns_the_exit_code(last: str, code: int) -> None:
    limit = "1" if code == 124 else "600"
    command = [sys.executable, str(CAGE), limit, sys.executable, "-c", f"{LEAVE}{last}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stderr
    assert not is_alive(int(done.stdout))


def test_every_block_of_a_function_is_named_by_the_function_and_its_line_in_it() -> None:
    names = [name.removeprefix("Thing.size") for name, _ in blocks(SOURCE)]
    assert names == ["+2", "+3", "+5", "+7", "+9", "+10", "+12"]
    assert [block_of(SOURCE, line) for line in (9, 10, 13, 14)] == [f"Thing.size+{n}" for n in (2, 3, 2, 7)]


def test_a_module_with_probes_reports_the_blocks_that_it_enters(tmp_path: Path) -> None:
    module = tmp_path / "tree/clusterctl/thing.py"
    module.parent.mkdir(parents=True)
    module.write_text(SOURCE)
    places = put_probes(Tree(tmp_path / "tree"), tmp_path / "hits")
    values: dict[str, type] = {}
    exec(compile(module.read_text(), "thing.py", "exec"), values)
    assert (values["Thing"]().size(0), values["Thing"]().size(4)) == (1, 1)
    reached = [places[int(number)][1] for number in (tmp_path / "hits").read_text().split()]
    assert reached == [f"Thing.size+{n}" for n in (2, 7, 9, 10, 12, 3)]


def test_a_fault_is_put_where_its_code_is_and_nowhere_else() -> None:
    fault = Fault("x", "clusterctl/thing.py", "n > 3", "n >= 3")
    assert "if n >= 3:" in fault.applied(SOURCE)
    for source in ("", SOURCE.replace("n > 2", "n > 3")):
        with pytest.raises(ValueError, match="has its code"):
            fault.applied(source)


def test_the_tests_of_a_fault_are_those_that_reach_its_block_the_nearest_and_quickest_first() -> None:
    fault, reached = (
        Fault("x", "clusterctl/cli/thing.py", "n > 3", "n >= 3"),
        {"clusterctl/cli/thing.py": ["Thing.size+2"]},
    )
    tests = [
        ("tests/contract/e2e/a.py", 2, 0),
        ("tests/unit/cli/b.py", 9, 0),
        ("tests/unit/cli/c.py", 3, 0),
        ("tests/unit/cli/d.py", 1, 1),
    ]
    known = [{"test": test, "seconds": seconds, "code": code, "reached": reached} for test, seconds, code in tests]
    known.append({"test": "tests/unit/cli/e.py", "seconds": 1, "code": 0, "reached": {}})
    assert files_reaching(fault, SOURCE, known) == [
        ("tests/unit/cli/c.py", 3),
        ("tests/unit/cli/b.py", 9),
        ("tests/contract/e2e/a.py", 2),
    ]


def test_there_are_120_faults_and_no_two_have_one_name() -> None:
    assert len({fault.id for fault in read_faults()}) == 120


def test_every_fault_can_be_put_into_the_code() -> None:
    assert main() == 0
