"""Runs of ranks that are started without mpirun. `tests/real/mpi` has those of the real one."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from clusterctl.runtime import load_model
from contract.e2e.programs import REGRESSION
from support.processes import wait_until
from unit.ranks.started import OBEYS, SETTINGS, Ranks, ends, ranks_in

SHOW = """
import json, os, sys
from clusterctl.runtime import connect
with connect() as ps:
    names = sorted(name for name in os.environ if name.startswith(("OMPI", "PMIX", "PMI", "CLUSTERCTL_TEST", "SSH_")))
    print(json.dumps({"rank": ps.rank, "cwd": os.getcwd(), "python": sys.executable, "names": names,
                      "node": os.environ["CLUSTERCTL_NODE_ID"]}), flush=True)
"""


@pytest.fixture
def ranks(tmp_path: Path) -> Iterator[Ranks]:
    with ranks_in(tmp_path / "work") as made:
        yield made


def test_ranks_train_and_leave_their_outputs(ranks: Ranks) -> None:
    ranks.train(REGRESSION)
    done = ends(ranks.one_on_each_node())
    assert [code for code, _, _ in done] == [0, 0], done
    assert "end of pass 2 on trainer 0" in done[0][1]
    assert "end of pass 2 on trainer 1" in done[1][1]
    job = ranks.jobs()[0].name
    assert f"clusterctl-rank: {job} runs on 2 nodes with 2 trainers" in done[0][2]
    assert f"clusterctl-rank: {job} succeeded\n  outputs: {ranks.home}/node*/{job}/output" in done[0][2]
    assert done[1][2] == ""
    status = json.loads(ranks.cluster("status", "--json"))
    assert (status["job"], status["state"]) == (job, "succeeded")
    assert "end of pass 2 on trainer 1" in ranks.cluster("logs")
    ranks.cluster("collect", "-o", str(ranks.directory / "result"))
    assert set(load_model(ranks.directory / "result" / "model")) == {"w", "e"}
    assert sorted(path.name for path in ranks.home.iterdir()) == ["conf.py", "node0", "node1", "ranks"]
    assert list((ranks.home / "ranks").iterdir()) == []


def test_a_program_runs_in_the_working_directory_with_what_it_gets_over_ssh(ranks: Ranks) -> None:
    ranks.env |= {"SSH_CONNECTION": "192.0.2.1 1 192.0.2.2 22", "PMI_RANK": "0", "OMPI_COMM_WORLD_NODE_RANK": "0"}
    ranks.train(SHOW)
    done = ends(ranks.one_node())
    assert [code for code, _, _ in done] == [0, 0], done
    shown = [json.loads(out) for _, out, _ in done]
    assert [one["rank"] for one in shown] == [0, 1]
    assert {one["node"] for one in shown} == {"0"}
    assert {one["cwd"] for one in shown} == {str(ranks.directory)}
    assert {one["python"] for one in shown} == {sys.executable}
    assert [one["names"] for one in shown] == [[], []]


def test_the_settings_may_be_those_of_another_conf_py_and_its_hosts_do_not_count(ranks: Ranks) -> None:
    ranks.conf('MODE = "quick"\n')
    (ranks.directory / "other.py").write_text(
        'HOSTS = ["no-such-host"]\nMODE = "async"\nTRAINERS = 1\nENGINE = "mpi"\nPSERVERS = 0\nENV = {"GIVEN": "yes"}\n'
    )
    ranks.train("import os\nprint(*map(os.environ.get, ('OMPI_COMM_WORLD_RANK', 'OMPI_COMM_WORLD_SIZE', 'GIVEN')))\n")
    done = ends([ranks.begin(rank, 2, rank, 2, "--conf", "other.py") for rank in range(2)])
    assert [(code, out) for code, out, _ in done] == [(0, "0 2 yes\n"), (0, "1 2 yes\n")], done


@pytest.mark.slow
def test_keys_are_private_while_the_run_is_under_way(ranks: Ranks) -> None:
    """Then `stop` ends all ranks."""
    ranks.train(OBEYS)
    started = ranks.one_node()
    ranks.wait_for_output(2)
    paths = [path for path in ranks.home.rglob("*") if "lib" not in path.parts]
    assert any(path.parent.name == "keys" for path in paths)
    assert [path for path in paths if path.lstat().st_mode & 0o077] == []
    assert wait_until(lambda: json.loads(ranks.cluster("status", "--json"))["state"] == "running")
    ranks.cluster("stop")
    assert [code for code, _, _ in ends(started)] == [143, 143]


@pytest.mark.slow
def test_commands_reach_a_node_of_another_machine_through_its_rank(ranks: Ranks) -> None:
    """As from another machine: the conf.py of this one says that no node is here."""
    ranks.obey()
    started = ranks.one_on_each_node()
    ranks.wait_for_output(2)
    conf = ranks.home / "conf.py"
    assert [line for line in conf.read_text().splitlines() if "--reach" in line and "mpi-" in line] == []
    assert [process.command for process in ranks.processes() if "mpi-" in process.command] == []
    conf.write_text(conf.read_text().replace("gethostname()", "'elsewhere'"))
    assert wait_until(lambda: json.loads(ranks.cluster("status", "--json"))["state"] == "running")
    assert "up 1" in ranks.cluster("logs")
    ranks.cluster("stop")
    assert [code for code, _, _ in ends(started)] == [143, 143]


def test_a_program_that_is_missing_is_named_once_and_no_job_is_made(ranks: Ranks) -> None:
    done = ends(ranks.one_on_each_node())
    assert [code for code, _, _ in done] == [2, 2], done
    assert f"clusterctl-rank: there is no train.py in {ranks.directory}\n" in done[0][2]
    assert done[1][2] == ""
    assert ranks.jobs() == []


def test_a_rank_that_cannot_write_says_so(ranks: Ranks) -> None:
    """As on a full disk."""
    ranks.train(REGRESSION)
    done = ends([ranks.begin(0, 1, 0, 1, through=("/bin/sh", "-c", 'ulimit -f 0; exec "$@"', "sh"))])
    assert done[0][0] == 1, done
    assert f"clusterctl-rank: cannot go on in {ranks.directory}: File too large\n" in done[0][2]
    assert "Traceback" not in done[0][2]


@pytest.mark.slow
def test_a_node_that_cannot_start_ends_all_ranks_and_is_named(ranks: Ranks) -> None:
    ranks.conf(SETTINGS + 'PYTHON = "no-such-python"\n')
    ranks.train(REGRESSION)
    done = ends(ranks.one_on_each_node())
    assert [code for code, _, _ in done] == [3, 3], done
    assert "python was not found" in done[0][2]
