"""Programs written for other engines find their environment, listen at their addresses, and come to an end."""

from __future__ import annotations

import json
import socket

import pytest

from support.processes import wait_until
from support.site import Site

# The same program in every role, as in Paddle's and MXNet's examples. A server echoes until it is terminated.
ECHO = """
import os, socket, sys, time

def serve(port):
    listener = socket.socket()
    if REUSE:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("", port))
    listener.listen()
    print("serves on", port, "in attempt", os.environ["CLUSTERCTL_ATTEMPT"], flush=True)
    return listener

def ask(endpoint, word):
    host, port = endpoint.split(":")
    with socket.create_connection((host, int(port)), timeout=30) as sock:
        sock.sendall(word.encode())
        sock.shutdown(socket.SHUT_WR)
        return sock.makefile().read()

def ask_until_it_answers(endpoint, word):
    while True:
        try:
            return ask(endpoint, word)
        except ConnectionError:
            time.sleep(0.05)

def echo(listener):
    while True:
        connection, _ = listener.accept()
        with connection:
            first = connection.recv(1, socket.MSG_PEEK)
            if not first or first > b"\\x7f":
                continue  # a trainer of another test, which looks for a pserver that is gone
            word = connection.makefile().read()
            connection.sendall(word.upper().encode())
        return word
"""

PADDLE = """
env = os.environ
if env["TRAINING_ROLE"] == "PSERVER":
    assert env["POD_IP"] + ":" + env["PADDLE_PORT"] in env["PADDLE_PSERVERS_IP_PORT_LIST"].split(",")
    listener = serve(int(env["PADDLE_PORT"]))
    while True:
        echo(listener)
for endpoint in env["PADDLE_PSERVERS_IP_PORT_LIST"].split(","):
    print("answer", ask_until_it_answers(endpoint, "hello from trainer " + env["PADDLE_TRAINER_ID"]), flush=True)
if WAIT:
    time.sleep(600)
"""

TORCH = """
env = os.environ
if env["RANK"] == "0":
    listener = serve(int(env["MASTER_PORT"]))
    words = {echo(listener) for _ in range(int(env["WORLD_SIZE"]) - 1)}
    assert words == {str(rank) for rank in range(1, int(env["WORLD_SIZE"]))}, words
else:
    ask_until_it_answers(env["MASTER_ADDR"] + ":" + env["MASTER_PORT"], env["RANK"])
print("rank", env["RANK"], "of", env["WORLD_SIZE"], flush=True)
"""

# Servers and the scheduler leave once all workers have said goodbye, possibly before those have exited.
DMLC = """
env = os.environ
root = env["DMLC_PS_ROOT_URI"] + ":" + env["DMLC_PS_ROOT_PORT"]
if env["DMLC_ROLE"] == "scheduler":
    listener = serve(int(env["DMLC_PS_ROOT_PORT"]))
    gone = 0
    while gone < int(env["DMLC_NUM_WORKER"]):
        gone += echo(listener) == "goodbye"
    open("over", "w").close()
elif env["DMLC_ROLE"] == "server":
    while True:
        try:
            ask(root, "server")
        except ConnectionError:
            if os.path.exists(os.environ["MEET"]):
                break
        time.sleep(0.05)
else:
    for word in ("hello", "goodbye"):
        print(ask_until_it_answers(root, word), flush=True)
    open(os.environ["MEET"], "w").close()
"""

MPI = """
import os
print("rank", os.environ["OMPI_COMM_WORLD_RANK"], "of", os.environ["OMPI_COMM_WORLD_SIZE"],
      "local", os.environ["OMPI_COMM_WORLD_LOCAL_RANK"], flush=True)
"""

# Both roles of a program of the old launcher: one port for all pservers, from the environment.
OLD = """
env = os.environ
port = int(env["PADDLE_INIT_PORT"])
if env["TRAINING_ROLE"] == "PSERVER":
    listener = serve(port)
    while True:
        echo(listener)
for host in env["PADDLE_INIT_PSERVERS"].split(","):
    answer = ask_until_it_answers(f"{host}:{port}", "hello from trainer " + env["PADDLE_INIT_TRAINER_ID"])
    print("answer", answer, flush=True)
"""


def program(body: str, *, reuse: bool = True, wait: bool = False) -> str:
    return f"REUSE, WAIT = {reuse}, {wait}\n{ECHO}{body}"


def train_and_read_logs(site: Site, train: str, *options: str) -> str:
    """Run to success and return the output of all processes."""
    package = str(site.workspace(train))
    job: str = site.ok("start", "--job_dispatch_package", package, "--detach", "--json", *options).json()["job"]
    site.ok("status", job, "--watch", "--json")
    assert site.status(job)["state"] == "succeeded"
    output = site.ok("logs", job).out
    site.assert_nothing_left(job)
    return output


def test_servers_that_never_exit_are_stopped_when_the_trainers_are_done(site: Site) -> None:
    site.conf(HOSTS=site.hosts[:2])
    output = train_and_read_logs(site, program(PADDLE), "--engine", "paddle")
    assert output.count("answer HELLO FROM TRAINER 0") == output.count("answer HELLO FROM TRAINER 1") == 2
    assert output.count("in attempt 1") == 2


def test_a_program_that_does_not_share_its_port_gets_it_on_the_second_attempt(site: Site) -> None:
    site.conf(HOSTS=site.hosts[:2], ENGINE="paddle")
    output = train_and_read_logs(site, program(PADDLE, reuse=False))
    assert output.count("in attempt 2") == 2
    assert "Address already in use" in output


@pytest.mark.slow
def test_both_roles_of_an_old_program_meet_at_one_port_when_the_first_one_is_taken(site: Site) -> None:
    with socket.socket() as sock:
        sock.bind(("", 0))
        sock.listen()
        port = sock.getsockname()[1]
        site.conf(HOSTS=site.hosts[:2], PSERVERS=1, PSERVER_COMMAND="python train.py", PORT=port)
        result = train_and_read_logs(site, program(OLD))
    assert "answer HELLO FROM TRAINER 0" in result
    assert "answer HELLO FROM TRAINER 1" in result
    assert f"serves on {port} " not in result


#: A trainer ends once the pserver of its node has printed what it prints; the end of the run ends that one.
AFTER_PSERVER = """
if os.environ["TRAINING_ROLE"] == "PSERVER":
    open("shown", "w").close()
    time.sleep(600)
while not os.path.exists("shown"):
    time.sleep(0.01)
"""


@pytest.mark.slow
def test_start_warns_of_pservers_of_the_users_that_must_have_different_ports(site: Site) -> None:
    site.conf(HOSTS=site.hosts[:2], PSERVER_COMMAND="python train.py")
    show = "print(*(os.environ[name] for name in ('PADDLE_INIT_PORT', 'CLUSTERCTL_PSERVERS')), flush=True)"
    job = site.dispatch(f"import os, time\n{show}\n{AFTER_PSERVER}")
    started = site.ok("start", "--job_workspace", job)
    assert "several pservers share a machine, so each has its own port" in started.out
    logs = {role: site.ok("logs", job, "--role", role).out.splitlines() for role in ("pserver", "trainer")}
    own = [line.split()[2] for line in sorted(logs["pserver"], key=lambda line: line.split()[1])]
    ports, endpoints = zip(*(line.split()[2:4] for line in logs["trainer"]), strict=True)
    assert len(set(own)) == 2
    assert set(ports) == {own[0]}
    assert set(endpoints) == {",".join(f"127.0.0.1:{port}" for port in own)}


def test_ranks_meet_at_the_address_of_rank_0(site: Site) -> None:
    site.conf(HOSTS=site.hosts[:3], ENGINE="torch", TRAINERS_PER_NODE=2)
    output = train_and_read_logs(site, program(TORCH))
    assert [f"rank {rank} of 6" in output for rank in range(6)] == [True] * 6


@pytest.mark.slow
def test_a_master_that_does_not_share_its_port_is_restarted_with_all_ranks(site: Site) -> None:
    site.conf(HOSTS=site.hosts[:2], ENGINE="torch")
    output = train_and_read_logs(site, program(TORCH, reuse=False))
    assert "in attempt 2" in output
    assert "rank 1 of 2" in output


@pytest.mark.slow
def test_a_scheduler_runs_alongside_servers_and_workers(site: Site) -> None:
    site.conf(HOSTS=site.hosts[:2], ENGINE="dmlc", ENV={"MEET": str(site.directory / "met")})
    output = train_and_read_logs(site, program(DMLC))
    assert output.count("GOODBYE") == 2
    assert output.count("HELLO") == 2
    assert "scheduler0" in output


@pytest.mark.slow
def test_mpi_programs_get_their_ranks(site: Site) -> None:
    site.conf(HOSTS=site.hosts[:2], ENGINE="mpi", TRAINERS_PER_NODE=2)
    output = train_and_read_logs(site, MPI)
    assert [f"rank {rank} of 4 local {rank % 2}" in output for rank in range(4)] == [True] * 4


@pytest.mark.slow
def test_two_jobs_on_the_same_nodes_have_separate_ports(site: Site) -> None:
    site.conf(HOSTS=site.hosts[:2], ENGINE="paddle")
    jobs = [site.start(program(PADDLE, wait=True)) for _ in range(2)]

    def served_by(job: str) -> set[str]:
        lines = site.ok("logs", job, "--role", "pserver").out.splitlines()
        return {line.split("serves on ")[1] for line in lines if "serves on" in line}

    assert wait_until(lambda: all(len(served_by(job)) == 2 for job in jobs))  # they say so once they listen
    served = [served_by(job) for job in jobs]
    for job in jobs:
        site.ok("stop", job)
        site.assert_nothing_left(job)
    assert not served[0] & served[1]


def test_an_unknown_engine_is_a_usage_error_that_names_the_known_ones(site: Site) -> None:
    result = site.run("start", "--job_dispatch_package", str(site.workspace("")), "--engine", "tourch")
    assert result.code == 2
    assert "'tourch'" in result.err
    assert "torch" in result.err


@pytest.mark.parametrize("spelling", [("--engine", "mpi"), ("--engine=mpi",)])
def test_the_plan_shows_an_engines_variables(site: Site, spelling: tuple[str, ...]) -> None:
    site.conf(HOSTS=site.hosts[:2])
    package = str(site.workspace(""))
    document = site.ok("start", "--job_dispatch_package", package, "--plan", "--json", *spelling).json()
    assert [p["env"]["OMPI_COMM_WORLD_RANK"] for p in document["processes"]] == ["0", "1"]


@pytest.mark.nodes(2)
@pytest.mark.parametrize("engine", ["none", "mpi"])
def test_programs_without_variables_for_it_get_a_list_of_all_nodes(site: Site, engine: str) -> None:
    site.conf(ENGINE=engine, PSERVERS=0, TRAINERS_PER_NODE=2)
    program = "import json, os; print('nodes:', json.dumps(json.load(open(os.environ['CLUSTERCTL_NODES']))))"
    site.ok("start", "--job_dispatch_package", str(site.workspace(program)))
    printed = [line.partition("nodes: ")[2] for line in site.ok("logs").out.splitlines() if "nodes: " in line]
    assert len(printed) == 4
    assert len(set(printed)) == 1
    nodes = json.loads(printed[0])["nodes"]
    assert [(one["node"], one["trainers"], one["pservers"]) for one in nodes] == [(0, [0, 1], []), (1, [2, 3], [])]
    assert all(one["address"].startswith("127.") for one in nodes)
