"""User errors: each gets one clear message with the node, a hint and the right exit code; nothing is left half done."""

from __future__ import annotations

import shutil
import socket
from pathlib import Path

import pytest

from contract.e2e.programs import LEAVE, SLEEP
from support.openssh import make_key
from support.processes import wait_until
from support.site import Result, Site


def no_traceback(result: Result) -> None:
    assert "Traceback" not in result.err + result.out


def failing(site: Site, code: int, *args: str, **options: object) -> Result:
    result = site.run(*args, **options)  # type: ignore[arg-type]
    assert result.code == code, f"exit {result.code}\n{result.out}\n{result.err}"
    no_traceback(result)
    return result


def test_an_unreachable_host_is_named_the_others_have_the_job_and_it_can_be_completed_later(site: Site) -> None:
    workspace = str(site.workspace(SLEEP))
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
        site.conf(HOSTS=[*site.hosts[:3], f"127.0.0.1:{port}"])
        result = failing(site, 3, "dispatch", workspace)
        assert "node3" in result.err
        assert "refused" in result.err
        assert "check that sshd is running" in result.err
        assert "3/4 nodes have JOB" in result.err
        assert "--only failed@last" in result.err
        document = failing(site, 3, "--json", "dispatch", workspace).json()
        error = document["error"]
        assert (error["kind"], error["node"]) == ("unreachable", "node3")
        assert [node["ok"] for node in document["nodes"]] == [True, True, True, False]
        failing(site, 3, "start", "--job_workspace", document["job"])
        assert site.processes(document["job"]) == []
    site.conf()
    completed = site.ok("dispatch", workspace, "--only", "node3", "--json").json()
    assert completed["job"] == document["job"]
    assert [(node["node"], node["ok"]) for node in completed["nodes"]] == [(3, True)]
    assert [node["kept"] for node in site.ok("dispatch", workspace, "--json").json()["nodes"]] == [True] * 4


@pytest.mark.slow
def test_status_shows_what_is_known_when_a_node_is_unreachable(site: Site) -> None:
    site.conf(ENGINE="none")
    job = site.start(SLEEP)
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        site.conf(HOSTS=[*site.hosts[:3], f"127.0.0.1:{sock.getsockname()[1]}"])
        result = failing(site, 3, "status", job, "--json")
        site.conf()
    status = result.json()
    assert status["state"] == "running"
    assert {p["state"] for p in status["processes"] if p["node"] == 3} == {"unknown"}
    site.ok("stop", job)


def test_a_wrong_key_is_reported_with_a_hint(any_site: Site) -> None:
    site = any_site
    stranger = make_key(site.directory / "stranger")
    site.conf(IDENTITY_FILE=stranger)
    error = failing(site, 3, "status", "--json").json()["error"]
    assert "authentication" in error["message"].lower() or "key" in error["message"].lower()
    assert "IDENTITY_FILE" in str(error)


def test_an_unknown_host_key_is_refused_until_trust_records_it(any_site: Site) -> None:
    site = any_site
    known = site.directory / "known_hosts"
    known.write_text("")
    site.conf(KNOWN_HOSTS=known)
    result = failing(site, 4, "jobs")
    assert "clusterctl trust" in result.err
    assert "SHA256:" in result.err
    assert known.read_text() == ""
    assert failing(site, 2, "trust", "--json").json()["error"]["kind"] == "usage"
    assert known.read_text() == ""
    shown = site.ok("trust", "--yes")
    assert shown.out.count("SHA256:") == 4
    assert "recorded 4 keys" in shown.out
    site.ok("jobs")
    assert "4 hosts already known" in site.ok("trust").out


def test_a_changed_host_key_is_refused_and_explained(any_site: Site) -> None:
    site = any_site
    other = make_key(site.directory / "other").with_suffix(".pub").read_text().split()[:2]
    lines = Path(site.paths["KNOWN_HOSTS"]).read_text().splitlines()
    name = f"[127.0.0.1]:{site.hosts[1].rpartition(':')[2]}"
    known = site.directory / "known_hosts"
    known.write_text("\n".join(f"{name} {' '.join(other)}" if line.startswith(name) else line for line in lines) + "\n")
    site.conf(KNOWN_HOSTS=known)
    error = failing(site, 4, "jobs", "--json").json()["error"]
    assert error["node"] == "node1"
    assert "changed" in str(error).lower()
    assert failing(site, 4, "trust", "--yes").code == 4
    assert f"{name} {' '.join(other)}" in known.read_text()


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["dispatch", "nowhere"], ["nowhere", "does not exist", "clusterctl init"]),
        (["start", "--job_dispatch_package=nowhere"], ["nowhere", "does not exist"]),
        (["start", "--plan", "--job_dispatch_package=nowhere"], ["nowhere", "does not exist"]),
        (["start"], ["--job_workspace"]),
        (["start", "--job_workspace", "JOB19700101-000000"], ["there is no job JOB19700101-000000", "clusterctl jobs"]),
        (["start", "--job_workspace", "~/clusterctl/JOB19700101-000000"], ["there is no job"]),
        (["start", "--job_workspac=JOB1"], ["did you mean --job_workspace"]),
        (["start", "--job_workspace", "x", "--verbos"], ["did you mean --verbose"]),
        (["start", "--job_workspace", "x", "stray"], ["stray"]),
        (["start", "--job_workspace", "x", "--use_gpu", "0"], ["--use_gpu=VALUE"]),
        (["stauts"], ["stauts"]),
        (["status", "--nonsense"], ["--nonsense"]),
        (["logs", "--grep", "("], ["--grep"]),
        (["logs", "--since", "yesterday"], ["--since"]),
        (["logs", "--role", "waiter"], ["pserver, trainer, scheduler"]),
        (["status", "--only", "node[7]"], ["node"]),
        (["--conf"], ["--conf needs a value"]),
        (["--conf", "nowhere.py", "status"], ["nowhere.py", "clusterctl init"]),
        (["exec"], ["exec needs a command"]),
        (["status", "--", "x"], ["takes no arguments after --"]),
    ],
)
def test_a_mistyped_command_is_a_usage_error_with_a_hint(site: Site, args: list[str], words: list[str]) -> None:
    result = failing(site, 2, *args)
    for word in words:
        assert word in result.err, result.err
    assert failing(site, 2, "--json", *args).json()["error"]["kind"] in ("usage", "config")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("HOSTS = [\n  'a'\n", ["conf.py:"]),
        ("HOSTS = ['a']\nPROTS_NUM = 1\n", ["conf.py:2: PROTS_NUM", "PORTS_NUM"]),
        ("HOSTS = ['root@10.0.0.9:99999']\n", ["conf.py:1: HOSTS[0]", "1 to 65535"]),
        ("import nothing_like_this\n", ["conf.py:1", "nothing_like_this"]),
        ("HOSTS = ['a']\nON_NAN = 'stop'\n", ["conf.py:2: ON_NAN", '"warn" or "fail" or "skip"']),
        ("", ["HOSTS"]),
    ],
)
def test_an_error_in_conf_names_the_file_line_and_key(site: Site, text: str, words: list[str]) -> None:
    site.conf_path.write_text(text)
    result = failing(site, 2, "status")
    for word in words:
        assert word in result.err, result.err
    assert failing(site, 2, "status", "--json").json()["error"]["kind"] == "config"


def test_two_nodes_with_one_root_dir_are_refused(site: Site) -> None:
    shared = site.directory / "shared"
    site.conf(ROOT_DIR=str(shared))
    error = failing(site, 4, "dispatch", str(site.workspace("")), "--json").json()["error"]
    assert "same ROOT_DIR" in error["message"]
    assert "root_dir=" in error["hint"]
    assert not [path for path in shared.iterdir() if path.name.startswith("JOB")]
    assert not list((shared / ".clusterctl/incoming").iterdir())


def test_a_root_dir_that_cannot_be_written_is_reported_per_node(site: Site) -> None:
    blocked = site.directory / "file"
    blocked.write_text("in the way")
    site.conf(ROOT_DIR=str(blocked / "root"))
    result = failing(site, 3, "dispatch", str(site.workspace("")))
    assert "ROOT_DIR" in result.err


def test_hosts_in_a_different_order_than_at_dispatch_are_refused(site: Site) -> None:
    job = site.dispatch(SLEEP)
    site.conf(HOSTS=[site.hosts[1], site.hosts[0], *site.hosts[2:]])
    result = failing(site, 4, "start", "--job_workspace", job)
    assert "HOSTS has changed" in result.err
    site.conf()
    assert site.status(job)["state"] == "dispatched"


@pytest.mark.nodes(3)
def test_a_job_missing_on_one_node_is_not_started_anywhere(site: Site) -> None:
    job = site.dispatch(SLEEP)
    shutil.rmtree(site.job_dir(job, 2))
    result = failing(site, 3, "start", "--job_workspace", job)
    assert "node2" in result.err
    site.assert_nothing_left(job)


def test_collect_does_not_write_into_a_directory_with_other_files(site: Site) -> None:
    job = site.dispatch("")
    mine = site.directory / "mine"
    mine.mkdir()
    (mine / "thesis.txt").write_text("x")
    error = failing(site, 4, "collect", job, "-o", str(mine), "--json").json()["error"]
    assert error["kind"] == "refused"
    assert [path.name for path in mine.iterdir()] == ["thesis.txt"]


def test_init_overwrites_nothing(site: Site) -> None:
    site.ok("init", "fresh")
    assert (site.directory / "fresh/workspace/train.py").is_file()
    before = (site.directory / "fresh/conf.py").read_text()
    assert '\nSHARDS = ["train.txt-*"' in before
    failing(site, 4, "init", "fresh")
    assert (site.directory / "fresh/conf.py").read_text() == before


@pytest.mark.slow
def test_a_workspace_without_the_script_that_is_to_run_is_not_sent(site: Site) -> None:
    site.conf(TRAINER_COMMAND="bash scripts/train.sh --fast")
    workspace = site.workspace("")
    before = site.ok("jobs", "--json").json()["jobs"]
    problem = "TRAINER_COMMAND runs scripts/train.sh, which is not in the workspace"
    refused = failing(site, 4, "start", "--job_dispatch_package", str(workspace))
    assert f"nothing was sent: {problem}" in refused.err
    assert f"add it to {workspace}, or set the command in {site.conf_path}" in refused.err
    assert site.ok("jobs", "--json").json()["jobs"] == before
    sent = site.ok("dispatch", str(workspace))
    assert f"warning: {problem}" in sent.err
    (workspace / "scripts").mkdir()
    (workspace / "scripts/train.sh").write_text("true")
    assert problem not in site.ok("dispatch", str(workspace)).err


def test_a_mistake_on_this_machine_is_reported_once_and_not_for_every_node(site: Site) -> None:
    site.conf(SSH_CONFIG="/nowhere/ssh_config")
    for command in (["status"], ["exec", "--", "true"], ["dispatch", str(site.workspace(""))]):
        assert failing(site, 2, *command).err.splitlines() == [
            "SSH_CONFIG names /nowhere/ssh_config, which is not a file"
        ]


@pytest.mark.slow
@pytest.mark.nodes(3)
def test_logs_of_a_process_that_does_not_exist_are_a_usage_error(site: Site) -> None:
    site.conf(TRAINERS=site.hosts[:2])
    job = site.start(LEAVE)
    for words, problem, there in (
        (["--rank", "7"], "there is no process 7", "there: pserver 0-2, trainer 0,1"),
        (["--role", "trainer", "--rank", "2"], "there is no trainer 2", "there: trainer 0,1"),
        (["--role", "scheduler"], "there is no scheduler", "there: pserver 0-2, trainer 0,1"),
        (["--node", "node2", "--role", "trainer"], "there is no trainer", "there: pserver 2"),
    ):
        error = failing(site, 2, "logs", job, *words, *(["-f"] if "7" in words else [])).err
        assert f"{problem} in {job} run 1" in error
        assert there in error
    assert "there is no trainer 2" in failing(site, 2, "logs", job, "--role", "trainer", "--rank", "2", "-f").err
    assert wait_until(lambda: site.status(job)["state"] == "succeeded")
    site.ok("logs", job, "--rank", "1")
