"""The environment variables of programs written for other engines, and which of their processes get a port.

The names are those of the engines' own launchers: `paddle.distributed.launch`, torchrun, Open MPI's `mpirun`, the DMLC
tracker of ps-lite, and TensorFlow's TF_CONFIG.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Callable, NamedTuple

from clusterctl.common.run_spec import ProcessSpec, RunSpec

ROLES = ("pserver", "trainer")
RENDEZVOUS, MEETING_HOST = "rendezvous0", "pserver0"  # the name of the second port, and the process that has it
Endpoints = Mapping[str, str]  # "host:port" by process, such as "trainer0"


class Engine(NamedTuple):
    """`variables(spec, process, endpoints)` returns a process's additional variables.

    If `serves`, pservers run the trainers' program unless PSERVER_COMMAND names another; if `scheduled`, the first node
    runs it once more, as the scheduler; if `listens`, pservers are ready when they listen on their port; if `leaves`,
    pservers exit on their own, just before or after the trainers. `ports` selects the trainers with a port: "all", the
    "first" one, or "none". If `meets`, pserver 0 has a second port, where the engine's library lets processes meet. If
    `lists_nodes`, programs get a list of all nodes, since no variable names them. If it has `local_ranks`, programs
    choose their GPU by them, so every trainer has to see all GPUs of its node.
    """

    variables: Callable[[RunSpec, ProcessSpec, Endpoints], dict[str, str]]
    ports: str = "none"
    serves: bool = False
    scheduled: bool = False
    listens: bool = False
    leaves: bool = False
    meets: bool = False
    lists_nodes: bool = False
    local_ranks: bool = False


def node_list(spec: RunSpec) -> list[dict[str, Any]]:
    """Return the nodes of a run, the lead first, with their addresses in the cluster and the ranks on each."""
    return [
        {
            "node": node,
            "address": address,
            **{f"{role}s": [p.rank for p in spec.all_processes if (p.node, p.role) == (node, role)] for role in ROLES},
        }
        for node, address in zip(spec.members, spec.hosts or ())
    ]


def ports_of(engine: str, process: ProcessSpec) -> list[str]:
    """Return the names of the ports that the node chooses for a process before it is started; the first is its own.

    Our own pservers choose theirs.
    """
    chosen = ENGINES[engine]
    if process.role == "trainer":
        own = chosen.ports == "all" or (chosen.ports == "first" and process.rank == 0)
    else:
        own = not process.ours
    return [process.name] * own + [RENDEZVOUS] * (chosen.meets and process.name == MEETING_HOST)


def _all(role: str, count: int, endpoints: Endpoints) -> list[str]:
    return [endpoints[f"{role}{rank}"] for rank in range(count)]


def _local_size(spec: RunSpec) -> str:
    """Return the number of trainers on this node."""
    return str(sum(process.role == "trainer" for process in spec.processes))


def _paddle(spec: RunSpec, process: ProcessSpec, endpoints: Endpoints) -> dict[str, str]:
    host, _, port = endpoints[process.name].rpartition(":")
    return {
        "PADDLE_TRAINERS_NUM": str(spec.training.trainers),
        "PADDLE_TRAINER_ID": str(process.rank),
        "PADDLE_PSERVERS_IP_PORT_LIST": ",".join(_all("pserver", spec.training.pservers, endpoints)),
        "PADDLE_TRAINER_ENDPOINTS": ",".join(_all("trainer", spec.training.trainers, endpoints)),
        "POD_IP": host,
        "PADDLE_PORT": port,
        **_gloo(spec, endpoints),
    }


def _gloo(spec: RunSpec, endpoints: Endpoints) -> dict[str, str]:
    """Return the variables without which Paddle's collectives do nothing; ENV overrides them.

    Pserver 0 serves the endpoint until all trainers have found each other there, so both roles start together.
    """
    if RENDEZVOUS not in endpoints:
        return {}
    values = {
        "PADDLE_WITH_GLOO": "1",  # the trainers; 2 would include pservers
        "PADDLE_GLOO_RENDEZVOUS": "3",  # over HTTP
        "PADDLE_GLOO_HTTP_ENDPOINT": endpoints[RENDEZVOUS],
    }
    return {name: spec.env.get(name, value) for name, value in values.items()}


def _torch(spec: RunSpec, process: ProcessSpec, endpoints: Endpoints) -> dict[str, str]:
    if process.role != "trainer":
        return {}
    host, _, port = endpoints["trainer0"].rpartition(":")
    return {
        "MASTER_ADDR": host.strip("[]"),
        "MASTER_PORT": port,
        "RANK": str(process.rank),
        "LOCAL_RANK": str(process.index),
        "WORLD_SIZE": str(spec.training.trainers),
        "LOCAL_WORLD_SIZE": _local_size(spec),
    }


def _mpi(spec: RunSpec, process: ProcessSpec, endpoints: Endpoints) -> dict[str, str]:
    if process.role != "trainer":
        return {}
    return {
        "OMPI_COMM_WORLD_RANK": str(process.rank),
        "OMPI_COMM_WORLD_SIZE": str(spec.training.trainers),
        "OMPI_COMM_WORLD_LOCAL_RANK": str(process.index),
        "OMPI_COMM_WORLD_LOCAL_SIZE": _local_size(spec),
        "OMPI_COMM_WORLD_NODE_RANK": str(process.index),
    }


def _dmlc(spec: RunSpec, process: ProcessSpec, endpoints: Endpoints) -> dict[str, str]:
    host, _, port = endpoints["scheduler0"].rpartition(":")
    role = {"pserver": "server", "trainer": "worker"}.get(process.role, "scheduler")
    ids = {} if role == "scheduler" else {f"DMLC_{role.upper()}_ID": str(process.rank)}
    return {
        "DMLC_ROLE": role,
        "DMLC_PS_ROOT_URI": host.strip("[]"),
        "DMLC_PS_ROOT_PORT": port,
        "DMLC_NUM_SERVER": str(spec.training.pservers),
        "DMLC_NUM_WORKER": str(spec.training.trainers),
        "DMLC_NODE_HOST": spec.address,
        **ids,
    }


def _tensorflow(spec: RunSpec, process: ProcessSpec, endpoints: Endpoints) -> dict[str, str]:
    cluster = {"worker": _all("trainer", spec.training.trainers, endpoints)}
    if spec.training.pservers:
        cluster["ps"] = _all("pserver", spec.training.pservers, endpoints)
    kind = {"pserver": "ps", "trainer": "worker"}[process.role]
    return {"TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": kind, "index": process.rank}})}


def _nothing(spec: RunSpec, process: ProcessSpec, endpoints: Endpoints) -> dict[str, str]:
    return {}


ENGINES: Mapping[str, Engine] = {
    "clusterctl": Engine(_nothing),
    "none": Engine(_nothing, lists_nodes=True),
    "paddle": Engine(_paddle, ports="all", serves=True, meets=True),
    "torch": Engine(_torch, ports="first", local_ranks=True),
    "mpi": Engine(_mpi, lists_nodes=True, local_ranks=True),
    "dmlc": Engine(_dmlc, serves=True, scheduled=True, leaves=True),
    "tensorflow": Engine(_tensorflow, ports="all", listens=True),
}
