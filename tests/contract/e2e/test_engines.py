"""Programs written for other engines find their environment, listen at their addresses, and come to an end."""

from __future__ import annotations

import json
import socket

import pytest

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
import json, os
print("rank", os.environ["OMPI_COMM_WORLD_RANK"], "of", os.environ["OMPI_COMM_WORLD_SIZE"],
      "local", os.environ["OMPI_COMM_WORLD_LOCAL_RANK"], flush=True)
print("nodes:", json.dumps(json.load(open(os.environ["CLUSTERCTL_NODES"]))), flush=True)
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


def program(body: str, *, reuse: bool = True) -> str:
    return f"REUSE = {reuse}\n{ECHO}{body}"


def train_and_read_logs(site: Site, train: str, *options: str) -> str:
    """Run to success and return the output of all processes."""
    package = str(site.workspace(train))
    site.ok("start", "--job_dispatch_package", package, *options)
    return site.ok("logs").out


def test_servers_that_never_exit_are_stopped_when_the_trainers_are_done(site: Site) -> None:
    site.conf(HOSTS=site.hosts[:2])
    output = train_and_read_logs(site, program(PADDLE), "--engine", "paddle")
    assert output.count("answer HELLO FROM TRAINER 0") == output.count("answer HELLO FROM TRAINER 1") == 2
    assert output.count("in attempt 1") == 2


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


@pytest.mark.slow
def test_ranks_meet_at_the_address_of_rank_0(site: Site) -> None:
    site.conf(HOSTS=site.hosts[:2], ENGINE="torch", TRAINERS_PER_NODE=2)
    output = train_and_read_logs(site, program(TORCH))
    assert [f"rank {rank} of 4" in output for rank in range(4)] == [True] * 4


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


def test_an_unknown_engine_is_a_usage_error_that_names_the_known_ones(site: Site) -> None:
    result = site.run("start", "--job_dispatch_package", str(site.workspace("")), "--engine", "tourch")
    assert result.code == 2
    assert "'tourch'" in result.err
    assert "torch" in result.err


def test_the_plan_shows_an_engines_variables(site: Site) -> None:
    site.conf(HOSTS=site.hosts[:2])
    package = str(site.workspace(""))
    document = site.ok("start", "--job_dispatch_package", package, "--plan", "--json", "--engine=mpi").json()
    assert [p["env"]["OMPI_COMM_WORLD_RANK"] for p in document["processes"]] == ["0", "1"]


@pytest.mark.nodes(2)
def test_mpi_programs_get_their_ranks_and_a_list_of_all_nodes(site: Site) -> None:
    site.conf(ENGINE="mpi", PSERVERS=0, TRAINERS_PER_NODE=2)
    shown = train_and_read_logs(site, MPI)
    assert [f"rank {rank} of 4 local {rank % 2}" in shown for rank in range(4)] == [True] * 4
    printed = [line.partition("nodes: ")[2] for line in shown.splitlines() if "nodes: " in line]
    assert len(printed) == 4
    assert len(set(printed)) == 1
    nodes = json.loads(printed[0])["nodes"]
    assert [(one["node"], one["trainers"], one["pservers"]) for one in nodes] == [(0, [0, 1], []), (1, [2, 3], [])]
    assert all(one["address"].startswith("127.") for one in nodes)
