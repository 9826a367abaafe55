"""`task`: tasks of Fabric on every node."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from support.processes import wait_until
from support.site import Result, Site, assert_its_reader_may_leave

HEAD = "from fabric import task\nfrom pathlib import Path\n"
LOADED = "import sys\nfrom clusterctl.cli.app import run\nrun(sys.argv[1:])\nprint(*sys.modules, file=sys.stderr)"
WITHOUT = "import sys\nsys.modules['fabric'] = sys.modules['invoke'] = None\nfrom clusterctl.cli import main\nmain()"


def tasks(site: Site, text: str, name: str = "tasks.py") -> None:
    (site.directory / name).write_text(HEAD + text)


def test_identical_output_is_shown_once_and_failures_leave_the_others_alone(site: Site) -> None:
    tasks(
        site,
        """
@task(aliases=["d"])
def deploy(c, word, count=1):
    print("hello", word, count)
    c.run("echo from the node; echo err >&2")
    if c.node.id == 1:
        raise ValueError("no way")
    if c.node.id == 2:
        c.run("echo hidden >&2; exit 7", hide=True)
    c.run("echo end")
""",
    )
    result = site.run("task", "d", "--fold", "--", "you", "--count=3")
    assert result.code == 3
    begin = "hello you 3\nfrom the node\n"
    assert result.out == f"--- node[0,3]\n{begin}end\nerr\n--- node[1,2] (failed)\n{begin}err\n"
    assert result.err.splitlines() == [
        "task d failed on 2 of 4 nodes",
        "  node1  ValueError: no way (tasks.py:9)",
        "  node2  exit code 7 of: echo hidden >&2; exit 7: hidden (tasks.py:11)",
    ]
    again = site.run("task", "d", "--only", "failed@last", "--json", "--", "you")
    assert again.code == 3
    document = again.json()
    assert document["task"] == "d"
    assert [(one["node"], one["exit_code"]) for one in document["nodes"]] == [(1, 1), (2, 7)]
    assert {(one["stdout"], one["stderr"]) for one in document["nodes"]} == {("hello you 1\nfrom the node\n", "err\n")}
    assert document["nodes"][0]["error"]["message"] == "ValueError: no way (tasks.py:9)"
    assert document["error"]["details"]["nodes"][1]["node"] == "node2"


def test_pre_and_post_run_once_on_this_machine(site: Site) -> None:
    tasks(
        site,
        """
@task
def note(c, word="before"):
    c.run(f"echo {word} {type(c).__name__}")

from invoke import call

@task(pre=[note], post=[call(note, word="after")], autoprint=True)
def deploy(c, fail=False):
    c.local("echo $((40 + 2))")
    assert not (fail and c.node.id == 1)
    return "returned"
""",
    )
    done = site.ok("task", "deploy", "--fold")
    assert done.out == "before Context\n--- node[0-3]\n42\nreturned\nafter Context\n"
    failed = site.run("task", "deploy", "--", "--fail")
    assert failed.code == 3
    assert "after" not in failed.out
    document = site.ok("task", "deploy", "--json", "--only", "node2")
    assert document.json()["nodes"][0]["stdout"] == "42\nreturned\n"
    assert "before Context\nafter Context\n" in document.err
    assert site.ok("task", "deploy", "--quiet").out == ""


@pytest.mark.nodes(2)
def test_a_pre_task_that_fails_stops_the_rest(site: Site) -> None:
    tasks(site, "@task\ndef ready(c):\n    c.run('exit 5')\n@task(pre=[ready])\ndef go(c):\n    print('ran')\n")
    done = site.run("task", "go")
    assert (done.code, done.out) == (1, "")
    assert done.err == "the task ready failed on this machine: exit code 5 of: exit 5 (tasks.py:5)\n"


@pytest.mark.nodes(1)
def test_tasks_are_listed_and_mistakes_are_usage_errors(site: Site) -> None:
    tasks(site, '@task(aliases=["d"])\ndef deploy(c, word):\n    "Deploy it."\n\n@task\ndef build_all(c):\n    pass\n')
    assert site.ok("task", "--list").out == "build-all\ndeploy, d  Deploy it.\n"
    listed = site.ok("task", "--list", "--json").json()
    assert listed["tasks"][1] == {"name": "deploy", "aliases": ["d"], "summary": "Deploy it."}
    assert "--word=STRING" in site.ok("task", "deploy", "--", "--help").out
    refused(site.run("task"), "task needs NAME", "clusterctl task --list")
    refused(site.run("task", "deply"), "tasks.py has no task 'deply'; did you mean deploy?", "clusterctl task --list")
    refused(site.run("task", "deploy"), "did not receive required positional arguments: 'word'", "deploy -- --help")
    refused(site.run("task", "deploy", "--word=x"), "--word is not an option", "put the arguments of the task after --")
    refused(site.run("task", "deploy", "x"), "unexpected argument 'x'", "put the arguments of the task after --")
    tasks(site, "@task(hosts=['a'])\ndef deploy(c):\n    pass\n")
    refused(site.run("task", "deploy"), "the task deploy has hosts=", "choose nodes with --only")
    tasks(site, "\n1 / 0\n")
    refused(site.run("task", "deploy"), f"{site.directory}/tasks.py:4: ZeroDivisionError: division by zero")
    (site.directory / "fabfile.py").touch()
    refused(site.run("task", "deploy"), "both tasks.py and fabfile.py", "keep one of them")
    for name in ("tasks.py", "fabfile.py"):
        (site.directory / name).unlink()
    refused(
        site.run("task", "deploy"), "there is no tasks.py or fabfile.py", "create tasks.py: from fabric import task"
    )


def refused(done: Result, *texts: str) -> None:
    assert (done.code, done.out) == (2, "")
    assert [text for text in texts if text not in done.err] == []


def test_an_unreachable_node_does_not_hide_the_others(site: Site) -> None:
    site.conf(HOSTS=[*site.hosts[:2], "127.0.0.1:1"])
    tasks(site, "@task\ndef go(c):\n    c.run('echo here')\n")
    done = site.run("task", "go", "--json")
    assert done.code == 3
    document = done.json()
    assert [one["exit_code"] for one in document["nodes"]] == [0, 0, None]
    assert [one["stdout"] for one in document["nodes"]] == ["here\n", "here\n", ""]
    assert document["nodes"][2]["error"]["kind"] == "unreachable"


def test_a_long_task_shows_its_lines_as_they_come_and_ctrl_c_ends_it(any_site: Site) -> None:
    tasks(any_site, "@task\ndef go(c):\n    print('body')\n    c.run('echo begun; exec sleep 600')\n")
    process = any_site.popen("task", "go", "--no-fold")
    assert process.stdout is not None
    shown = {process.stdout.readline() for _ in range(8)}
    assert shown == {f"node{n}: {word}\n" for n in range(4) for word in ("body", "begun")}
    os.kill(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=180)
    assert process.returncode == 130
    assert "interrupted; the task was still running on node[0-3]" in err
    any_site.end_everything()  # as with ssh, the command itself goes on
    assert wait_until(lambda: not any_site.leftovers())


@pytest.mark.nodes(1)
def test_the_reader_may_close_the_pipe_early(site: Site) -> None:
    tasks(site, "@task\ndef go(c):\n    c.run('yes')\n")
    process = site.popen("task", "go", "--no-fold")
    assert_its_reader_may_leave(process)


@pytest.mark.nodes(2)
def test_an_error_of_a_connection_in_a_task_is_one_of_its_node(site: Site) -> None:
    tasks(site, "@task\ndef go(c):\n    c.run('true', env={'A;B': '1'} if c.node.id else {})\n")
    done = site.run("task", "go", "--json")
    assert done.code == 3
    assert [one["exit_code"] for one in done.json()["nodes"]] == [0, 1]
    assert "node1: 'A;B' is not a valid environment variable name" in done.err
    site.conf(KNOWN_HOSTS=site.directory / "none")
    done = site.run("task", "go", "--json")
    assert done.code == 4
    assert [one["exit_code"] for one in done.json()["nodes"]] == [None, None]


@pytest.mark.nodes(1)
def test_the_configuration_of_fabric_applies_and_mistakes_in_it_are_reported(site: Site) -> None:
    tasks(site, "@task\ndef go(c):\n    c.run('echo $0', hide=False)\n")
    echoing = site.ok("task", "go", env={"FABRIC_RUN_ECHO": "1"}).out
    assert "echo $0" in echoing
    assert "echo $0" not in site.ok("task", "go").out
    home = site.directory / "home"
    home.mkdir()
    (home / ".fabric.yaml").write_text("run: [\n")
    done = site.run("task", "go", env={"HOME": str(home)})
    assert (done.code, done.out) == (2, "")
    assert "the configuration of fabric is wrong: " in done.err
    assert "see ~/.fabric.yaml" in done.err


@pytest.mark.nodes(2)
def test_verbose_shows_the_traceback_of_a_task(site: Site) -> None:
    tasks(site, "def deep():\n    return {}['missing']\n@task\ndef go(c):\n    deep()\n")
    done = site.run("task", "go", "--verbose", "--only", "node1")
    assert done.code == 3
    assert "    return {}['missing']\n" in done.err
    assert "node1: KeyError: 'missing' (tasks.py:4)" in done.err


@pytest.mark.nodes(1)
@pytest.mark.parametrize("words", [("status",), ("exec", "--", "true"), ("jobs",)], ids=lambda words: words[0])
def test_other_commands_do_not_import_fabric(site: Site, words: tuple[str, ...]) -> None:
    done = site.run(*words, program=(sys.executable, "-c", LOADED))
    assert "clusterctl.cli.app" in done.err
    assert {"fabric", "invoke"}.isdisjoint(done.err.split())


@pytest.mark.nodes(1)
def test_other_commands_work_without_fabric(site: Site) -> None:
    program = (sys.executable, "-c", WITHOUT)
    assert site.ok("exec", "--fold", "--", "echo fine", program=program).out == "--- node0\nfine\n"


@pytest.mark.nodes(1)
def test_a_file_may_import_its_neighbours_and_connections_work_in_it(site: Site, tmp_path: Path) -> None:
    (site.directory / "beside.py").write_text("WORD = 'beside'\n")
    tasks(
        site,
        """
import beside
from fabric import Connection

@task
def go(c):
    assert isinstance(c, Connection)
    print(beside.WORD, c.node.label, c.node.root_dir)
    with c.cd("/"):
        c.run("pwd")
""",
        "fabfile.py",
    )
    assert site.ok("task", "go", "--fold", stdin=subprocess.DEVNULL).out == "--- node0\nbeside node0 ~/clusterctl\n/\n"
