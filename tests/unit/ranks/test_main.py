"""The program `clusterctl-rank`: its words, and what it loads."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from clusterctl.ranks.errors import RankError
from clusterctl.ranks.main import Options, parse
from unit.ranks.started import MAIN


def test_everything_from_the_command_on_is_the_trainers() -> None:
    assert parse(["python", "train.py", "--shared", "x"]) == Options(
        ["python", "train.py", "--shared", "x"], Path.cwd(), None
    )
    assert parse(["--shared", "/data", "--conf=c.py", "train"]) == Options(
        ["train"], Path("/data"), Path.cwd() / "c.py"
    )
    assert parse(["--", "--odd"]).command == ["--odd"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "there is no command for the trainers"),
        (["--shared"], "--shared needs a value"),
        (["--share", "x", "train"], "there is no option --share"),
    ],
)
def test_wrong_words_are_named(words: list[str], message: str) -> None:
    with pytest.raises(RankError, match=message) as caught:
        parse(words)
    assert caught.value.code == 2


def run(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(MAIN), *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env={"PATH": "/usr/bin"})


def test_help_shows_the_options() -> None:
    done = run("--help")
    assert done.returncode == 0
    assert all(word in done.stdout for word in ("--shared DIR", "--conf FILE", "mpirun -np 8", "MPI_Init"))


def test_outside_mpirun_it_says_how_it_is_started() -> None:
    done = run("python", "train.py")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "clusterctl-rank: this is no rank of mpirun: OMPI_COMM_WORLD_RANK or PMIX_NAMESPACE is missing\n"
        "  mpirun -np 8 clusterctl-rank python train.py\n"
    )


def test_a_rank_loads_no_more_than_it_needs_to_wait() -> None:
    """There may be hundreds of them on a machine."""
    program = (
        "import sys; from clusterctl.ranks import main, rank; "
        "print(*sorted(name for name in sys.modules if name.startswith('clusterctl.')))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=MAIN.parents[2]
    )
    loaded = done.stdout.split()
    assert "clusterctl.ranks.rank" in loaded
    assert [name for name in loaded if name.split(".")[1] not in ("common", "ranks")] == []
