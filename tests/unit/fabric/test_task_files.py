"""tasks.py or fabfile.py: what is found in it, and every mistake in it or in the call of a task."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from clusterctl.errors import ConfigError, UsageError
from clusterctl.fabric.tasks import TaskFile, TaskSummary, calls_of, load

TASKS = '''
from fabric import task
from invoke import task as local_task

@task
def build(c):
    pass

@task(pre=[build])
def test(c):
    pass

@task(pre=[test], post=[build], aliases=["d", "deploy_all"], help={"count": "how many"})
def deploy(c, target, count=1, force=False, tags=None):
    """
    Deploy it.

    More about it.
    """

@local_task
def here(c):
    pass

@task(hosts=["a"])
def hosted(c):
    pass

@task(pre=[hosted])
def after_hosted(c):
    pass

def plain(c):
    pass
'''


@pytest.fixture(autouse=True)
def same_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name in ("tasks", "fabfile"):
        monkeypatch.setitem(sys.modules, name, sys)


def written(directory: Path, text: str = TASKS, name: str = "tasks.py") -> TaskFile:
    (directory / name).write_text(text)
    return load(directory)


@pytest.mark.parametrize("name", ["tasks.py", "fabfile.py"])
def test_a_list_has_names_aliases_and_first_lines(tmp_path: Path, name: str) -> None:
    listed = written(tmp_path, name=name).listed()
    assert [one.name for one in listed] == ["after-hosted", "build", "deploy", "here", "hosted", "test"]
    assert listed[2] == TaskSummary("deploy", ("d", "deploy-all"), "Deploy it.")


@pytest.mark.parametrize("name", ["d", "deploy_all"])
def test_arguments_are_parsed_by_invoke(tmp_path: Path, name: str) -> None:
    call = written(tmp_path).call(name, ["-c", "3", "host", "--force", "--tags=a,b"])
    assert call.task.name == "deploy"
    assert call.kwargs == {"target": "host", "count": 3, "force": True, "tags": "a,b"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "did not receive required positional arguments: 'target'"),
        (["a", "b"], "No idea what 'b' is!"),
        (["a", "--cuont=3"], "No idea what '--cuont' is!"),
        (["a", "--count=x"], "invalid literal for int"),
        (["a", "--", "b"], "-- stands only before the arguments"),
        (["a", "deploy", "b"], "unexpected argument 'deploy'"),
    ],
)
def test_wrong_arguments_are_refused_with_a_command_that_shows_the_right_ones(
    tmp_path: Path, arguments: list[str], message: str
) -> None:
    with pytest.raises(UsageError, match=r"^task deploy: ") as raised:
        written(tmp_path).call("deploy", arguments)
    assert message in raised.value.message
    assert raised.value.hint == "clusterctl task deploy -- --help"


def test_the_arguments_of_a_task_are_shown_with_their_help(tmp_path: Path) -> None:
    usage = written(tmp_path).usage("d").splitlines()
    assert [line.split()[-2:] for line in usage if "count" in line] == [["how", "many"]]


def test_pre_and_post_are_called_with_their_own_around_them(tmp_path: Path) -> None:
    task = written(tmp_path).call("deploy", ["a"]).task
    assert [call.task.name for call in calls_of(task.pre)] == ["build", "test"]
    assert [call.task.name for call in calls_of(task.post)] == ["build"]


@pytest.mark.parametrize(
    ("name", "message", "hint"),
    [
        ("deplyo", "tasks.py has no task 'deplyo'; did you mean deploy", "clusterctl task --list"),
        ("plain", "plain is not a task, but a function without @task", "from fabric import task"),
        ("here", "here is a task of invoke, which gets no connection", "from fabric import task"),
        ("after-hosted", "the task hosted has hosts=", "choose nodes with --only"),
    ],
)
def test_what_is_not_a_task_for_the_nodes_is_refused(tmp_path: Path, name: str, message: str, hint: str) -> None:
    with pytest.raises(UsageError) as raised:
        written(tmp_path).call(name)
    assert message in raised.value.message
    assert hint in str(raised.value.hint)


def test_a_directory_needs_exactly_one_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"there is no tasks\.py or fabfile\.py in .*, beside conf\.py") as raised:
        load(tmp_path)
    assert "create tasks.py" in str(raised.value.hint)
    (tmp_path / "fabfile.py").touch()
    with pytest.raises(ConfigError, match=r"there are both tasks\.py and fabfile\.py"):
        written(tmp_path)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("import os\n\nraise ValueError('no\\nway')\n", ":3: ValueError: no way"),
        ("def f():\n    return missing\nf()\n", ":2: NameError: name 'missing' is not defined"),
        ("from fabric import task\ntask(lambda: None)\n", ":2: TypeError: Tasks must have an initial Context"),
        ("from fabric import task\n@task(help={'x': ''})\ndef f(c): pass\n", ": Help field was set for param"),
    ],
)
def test_a_file_that_fails_is_reported_with_its_line(tmp_path: Path, text: str, found: str) -> None:
    with pytest.raises(ConfigError) as raised:
        written(tmp_path, text)
    assert raised.value.message.startswith(f"{tmp_path}/tasks.py{found}")


def test_collections_and_their_settings_are_understood(tmp_path: Path) -> None:
    text = """
from fabric import task
from invoke import Collection

@task
def one(c):
    "First."

ns = Collection(web=Collection(one))
ns.configure({"depth": 3})
"""
    file = written(tmp_path, text)
    assert file.listed() == [TaskSummary("web.one", (), "First.")]
    assert file.call("web.one").task.name == "one"
    assert file.settings_of("web.one") == {"depth": 3}
    with pytest.raises(UsageError, match="has no task 'web'"):
        file.call("web")
    with pytest.raises(UsageError, match=r"has no task 'wbe\.one'; did you mean web\.one"):
        file.call("wbe.one")


def test_a_hook_gets_the_values_that_it_takes(tmp_path: Path) -> None:
    text = """
from fabric import task

@task
def some(c, state, more=1):
    pass

@task
def all_of_them(c, **values):
    pass

@task
def none(c):
    pass

@task
def too_much(c, state, other):
    pass
"""
    file = written(tmp_path, text)
    values = {"state": "failed", "run": 2}
    assert file.hook("some", values).kwargs == {"state": "failed"}
    assert file.hook("all-of-them", values).kwargs == values
    assert file.hook("none", values).kwargs == {}
    with pytest.raises(UsageError, match="the task too_much needs other") as raised:
        file.hook("too_much", values)
    assert raised.value.hint == "it gets state, run"
