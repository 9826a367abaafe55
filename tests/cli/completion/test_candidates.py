"""What is offered where on a command line."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from cli import make_completions
from cli.completion.caches import HOSTILE, JOB, OLDER, Cache, job, node
from clusterctl.cli.completion.bash_line import quoted, split_line
from clusterctl.cli.completion.candidates import table


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    cache = Cache(tmp_path)
    jobs = {OLDER: job("failed", ("pass-00000",), _1="first"), JOB: job("running", ("best",), _1="first", _2="lr-0.1")}
    cache.write([node(0, "head", "big"), node(1, "", "big"), node(2)], jobs)
    return cache


def test_the_table_is_made_of_the_declarations() -> None:
    remedy = "run python tests/cli/make_completions.py"
    assert make_completions.PATH.read_text(encoding="utf-8") == make_completions.text(), remedy


def test_every_name_in_kinds_belongs_to_something_declared() -> None:
    commands = table()["commands"]
    names = {name for command in commands.values() for name in command["options"]}
    kinds = {option["value"] for command in commands.values() for option in command["options"].values()}
    kinds |= {kind for command in commands.values() for kind in command["arguments"]}
    assert {key for key in make_completions.KINDS if key.startswith("--")} <= names
    assert set(make_completions.KINDS.values()) == kinds - {"", "none"}


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (["sta"], ["start", "status"]),
        (["fake", "h"], ["heal"]),
        (["--conf", "conf.py", "--json", "sto"], ["stop"]),
        (["logs", "--ro"], ["--role"]),
        (["logs", "--role", ""], ["pserver", "trainer", "scheduler"]),
        (["logs", "--role=t"], ["--role=trainer"]),
        (["logs", "-fn5", "--t"], []),  # -n is --tail
        (["logs", "-n", ""], []),
        (["start", "--job-w"], ["--job-workspace"]),
        (["start", "--job"], ["--job_workspace", "--job_dispatch_package"]),
        (["start", "--set", "A=1", "--se"], ["--set"]),
        (["start", "--resume", "--res"], ["--resume-from"]),
        (["start", "--engine", "t"], ["torch", "tensorflow"]),
        (["start", "--set", "ON_NA"], ["ON_NAN="]),
        (["start", "--set", "ON_NAN="], ["ON_NAN=warn", "ON_NAN=fail", "ON_NAN=skip"]),
        (["start", "--set=REPORT="], ["--set=REPORT=True", "--set=REPORT=False"]),
        (["start", "--set", "HOS"], []),
        (["exec", "--fo"], ["--fold"]),
        (["exec", "--no"], ["--no-fold"]),
        (["export", "out", "--to", ""], ["tensorboard", "trace", "csv"]),
        (["submit", "--to", ""], ["slurm", "kubernetes"]),
        (["completion", ""], ["bash", "zsh", "fish"]),
        (["nonsense", ""], []),
        (["status", "--bogus", "--wat"], ["--watch"]),
        (["status", "--inst"], []),
    ],
    ids=str,
)
def test_commands_options_and_words_of_closed_sets_are_offered(
    cache: Cache, words: list[str], offered: list[str]
) -> None:
    assert cache.offered(*words) == offered


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (["status", ""], [JOB, OLDER, "lr-0.1", "first"]),
        (["stop", "l"], ["lr-0.1"]),
        (["status", f"{JOB}/"], [f"{JOB}/1", f"{JOB}/2"]),
        (["stop", f"{JOB}/"], []),
        (["start", "--load", "JOB20261124"], [OLDER]),
        (["start", "--load", OLDER, "--load-tag", ""], ["pass-00000"]),
        (["start", "--load", "lr-0.1", "--load-run", ""], ["1", "2"]),
        (["start", "--name", ""], ["lr-0.1", "first"]),
        (["diff", JOB, "f"], ["first"]),
        (["collect", "--tag", ""], ["best", "pass-00000"]),
        (["collect", OLDER, "--run", ""], ["1"]),
        (["--only", ""], ["big", "node0", "node1", "node2", "head", "10.0.0.0", "10.0.0.1", "10.0.0.2", "failed@last"]),
        (["--only", "node0,f"], ["node0,failed@last"]),
        (["logs", "--node=node0,node"], ["--node=node0,node1", "--node=node0,node2"]),
        (["--only", "node[0-"], []),
        (["fake", "kill", ""], ["node0", "node1", "node2"]),
        (["--conf", "elsewhere.py", "status", ""], []),
    ],
    ids=str,
)
def test_what_commands_have_seen_is_offered_newest_first(cache: Cache, words: list[str], offered: list[str]) -> None:
    found = cache.offered(*words)
    assert [value for value in found if not value.startswith("--") or words[-1].startswith("--")] == offered


@pytest.mark.parametrize(
    ("words", "files"),
    [
        (["--conf", ""], "files"),
        (["dispatch", ""], "dirs"),
        (["start", ""], "dirs"),
        (["status", ""], "none"),
        (["report", "-o", ""], "files"),
        (["collect", "-o", ""], "dirs"),
        (["logs", "--grep", ""], "none"),
        (["exec", "--", "ls", ""], "files"),
        (["start", "workspace", "--", "--num_passes", ""], "files"),
    ],
    ids=str,
)
def test_a_shell_offers_files_only_where_they_are_meant(cache: Cache, words: list[str], files: str) -> None:
    assert cache.files(*words) == files


def test_after_the_last_argument_the_options_are_offered(cache: Cache) -> None:
    assert "--watch" in cache.offered("status", JOB, "")
    assert cache.offered("status", JOB, "x") == []


def test_the_line_of_bash_is_split_as_bash_splits_it() -> None:
    words = split_line('clusterctl  status a\\ b \'c  d\'"e\\"\\x" f\\')
    assert [word.text for word in words] == ["clusterctl", "status", "a b", 'c  de"\\x', "f"]
    assert [word.in_quotes for word in words] == [False, False, False, True, False]
    assert [word.text for word in split_line("clusterctl status ")] == ["clusterctl", "status", ""]
    assert split_line('x "two wo')[-1].text == "two wo"


@pytest.mark.parametrize("name", HOSTILE)
def test_a_quoted_name_is_one_word_for_bash(name: str) -> None:
    done = subprocess.run(["bash", "-c", f"printf '%s' {quoted(name)}"], capture_output=True, text=True, check=True)
    assert done.stdout == name
    assert split_line(quoted(name))[0].text == name


def test_an_answer_imports_nothing_that_takes_time(cache: Cache) -> None:
    code = (
        "import sys\nbefore = set(sys.modules)\nimport os\n"
        "os._exit = lambda code: (print('LOADED', *set(sys.modules) - before), sys.stdout.flush())\n"
        "import clusterctl.cli\nclusterctl.cli.main()"
    )
    env = {**cache.environ, "_CLUSTERCTL_COMPLETE": "zsh", "_CLUSTERCTL_WORDS": "clusterctl\x1fstatus\x1f"}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False)
    answer, _, loaded = done.stdout.partition("LOADED")
    assert answer.splitlines()[:2] == ["none", f"{JOB}\tlr-0.1, running"]
    ours = {name for name in loaded.split() if name.startswith("clusterctl")}
    allowed = ("clusterctl.cli.completion", "clusterctl.common")
    small = {"clusterctl", "clusterctl.api", "clusterctl.api.operations", "clusterctl.api.operations.caches"}
    assert {name for name in ours if not name.startswith(allowed)} == {*small, "clusterctl.cli"}
    slow = {"typer", "rich", "paramiko", "subprocess"}
    assert not slow & set(loaded.split())


def test_a_damaged_installation_leaves_the_files(
    cache: Cache, monkeypatch: pytest.MonkeyPatch, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    from clusterctl.cli.completion import answer

    def fail(*_: object) -> None:
        raise json.JSONDecodeError("damaged", "", 0)

    monkeypatch.setattr(answer, "complete", fail)
    monkeypatch.setenv(answer.ASKS, "fish")
    assert answer.answer_shell()
    assert capsysbinary.readouterr().out == b"files\n"
