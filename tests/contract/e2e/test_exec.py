"""`exec`: one command on every node, its output folded or line by line."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
from pathlib import Path

import pytest

from support.processes import wait_until
from support.site import Site, assert_its_reader_may_leave

ON_NODE_2 = "test $(basename $HOME) = home && id=$(basename $(dirname $HOME)) || id=$(basename $HOME); test $id = node2"


def gate(site: Site) -> Path:
    """The path of the file that the commands of a test wait for."""
    return site.directory / "go"


def wait_for(path: Path) -> str:
    return f"while ! test -e {path}; do sleep 0.05; done"


def test_identical_output_is_shown_once_and_failures_are_counted(site: Site) -> None:
    result = site.run("exec", "--fold", "--", f"echo same; echo err >&2; if {ON_NODE_2}; then exit 7; fi")
    assert result.code == 3
    assert result.out == "--- node[0,1,3]\nsame\nerr\n--- node2 (exit code 7)\nsame\nerr\n"
    assert "the command exited with code 7" in result.err


def test_over_ssh_it_needs_neither_python_nor_a_usable_root(site: Site) -> None:
    """It is how people install Python, or make room on a disk."""
    (site.home(0) / "file").write_text("")
    for settings in ({"PYTHON": "/no/such/python3"}, {"PYTHON": "false"}, {"ROOT_DIR": "~/file/root"}):
        site.conf(**settings)
        result = site.run("exec", "--only", "node0", "--json", "--", "echo out; echo err >&2; pwd -P; exit 5")
        node = result.json()["nodes"][0]
        printed = (f"out\n{site.home(0).resolve()}\n", "err\n")
        assert (node["exit_code"], (node["stdout"], node["stderr"])) == (5, printed), result


def test_a_long_command_shows_its_lines_as_they_come(site: Site) -> None:
    script = f"echo begun; {wait_for(gate(site))}; printf 'half'; exit 1"
    process = site.popen("exec", "--", script)
    assert process.stdout is not None
    first = {process.stdout.readline() for _ in range(4)}
    assert first == {f"node{n}: begun\n" for n in range(4)}
    gate(site).touch()
    out, err = process.communicate(timeout=180)
    assert sorted(out.splitlines()) == sorted(
        line for n in range(4) for line in (f"node{n}: half", f"node{n}: (exit code 1)")
    )
    assert process.returncode == 3
    assert "exec failed on 4 of 4 nodes" in err


@pytest.mark.slow
@pytest.mark.nodes(1)
def test_large_output_is_truncated_and_the_dropped_amount_is_reported(site: Site) -> None:
    flood = "yes 12345678 | head -n 200000"
    assert "... and 751 kB more; --no-fold shows all of it" in site.ok("exec", "--fold", "--", flood).out
    kept = site.ok("exec", "--json", "--", flood).json()["nodes"][0]
    assert len(kept["stdout"]) + kept["dropped_bytes"] == 9 * 200_000


@pytest.mark.nodes(1)
def test_the_reader_may_close_the_pipe_early(site: Site) -> None:
    process = site.popen("exec", "--no-fold", "--", "yes")
    assert_its_reader_may_leave(process)


def test_ctrl_c_ends_the_command_and_lists_where_it_was_still_running(any_site: Site) -> None:
    script = f"echo begun; if {ON_NODE_2}; then exit 0; fi; {wait_for(gate(any_site))}"
    process = any_site.popen("exec", "--no-fold", "--", script)
    assert process.stdout is not None
    assert {process.stdout.readline() for _ in range(4)} == {f"node{n}: begun\n" for n in range(4)}
    # node2 has printed its only line and is about to exit
    os.kill(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=180)
    gate(any_site).touch()
    assert process.returncode == 130
    assert "interrupted; the command was still running on node[0" in err
    assert wait_until(lambda: not any_site.leftovers())


@pytest.mark.nodes(1)
def test_data_on_standard_input_is_refused_and_empty_input_is_not(site: Site, tmp_path: Path) -> None:
    full = tmp_path / "full"
    full.write_text("data\n")
    with full.open() as stdin:
        result = site.run("exec", "--", "cat", stdin=stdin)
    assert result.code == 2
    assert "exec does not forward standard input" in result.err
    assert site.run("exec", "--", "cat", stdin=subprocess.DEVNULL).code == 0


def test_an_unreachable_node_and_a_failing_command_are_both_reported(site: Site) -> None:
    site.conf(HOSTS=[*site.hosts[:3], "127.0.0.1:1"])
    result = site.run("exec", "--", f"if {ON_NODE_2}; then exit 7; fi")
    assert result.code == 3
    assert "exec failed on 2 of 4 nodes" in result.err
    assert "refused" in result.err
    assert "exited with code 7" in result.err


@pytest.mark.slow
def test_in_job_runs_in_the_directory_of_the_job_on_every_node(site: Site) -> None:
    site.conf(ROOT_DIR="~/my jobs", ENGINE="none")
    site.ok("start", "--job_dispatch_package", str(site.workspace("pass")))
    ran = site.ok("jobs", "--json").json()["jobs"][0]["job"]
    newest = site.dispatch("print()")
    for words, job, program in (([], ran, "pass"), ([newest], newest, "print()")):
        document = site.ok("exec", "--in-job", *words, "--json", "--", "pwd; cat train.py").json()
        assert document["job"] == job
        directories = [str(site.home(node) / "my jobs" / job) for node in range(4)]
        assert [node["stdout"] for node in document["nodes"]] == [f"{where}\n{program}" for where in directories]
    listed = site.ok("exec", newest, "--in-job", "--fold", "--only", "node1", "--", "ls", "train.py").out
    assert listed == "--- node1\ntrain.py\n"


@pytest.mark.nodes(2)
def test_in_job_passes_arguments_and_exit_codes_on_and_runs_nothing_on_a_node_without_the_job(site: Site) -> None:
    site.conf(ROOT_DIR="~/apart")  # contains only this job, so that a part of its id names it
    job = site.dispatch("")
    echoed = site.ok("exec", "--fold", "--in-job", job, "--", "echo", "a  b", "$HOME", ";").out
    assert echoed == "--- node[0,1]\na  b $HOME ;\n"
    directory = site.home(1) / "apart" / job
    (directory / ".clusterctl").rename(directory / "gone")
    result = site.run("exec", "--in-job", job[:-1], "--json", "--", "echo ran; exit 7")
    assert result.code == 3
    nodes = result.json()["nodes"]
    assert [(node["stdout"], node["exit_code"]) for node in nodes] == [("ran\n", 7), ("", None)]
    assert nodes[1]["error"]["message"] == f"there is no job {job[:-1]}"
    missing = site.run("exec", "--in-job", "JOB1", "--", "true")
    assert (missing.code, missing.out) == (2, "")
    assert "there is no job JOB1" in missing.err


@pytest.mark.nodes(1)
def test_a_job_without_in_job_is_refused_with_a_command_that_works(site: Site) -> None:
    job = site.dispatch("")
    refused = site.run("exec", job, "--", "ls", "train.py")
    assert refused.code == 2
    hint = refused.err.splitlines()[-1].partition("clusterctl ")[2]
    assert site.ok("--json", *shlex.split(hint)).json()["nodes"][0]["stdout"] == "train.py\n"
