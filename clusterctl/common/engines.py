"""What programs written for other engines find in their environment, and which of their processes get a port.

The names are those of the engines' own launchers: `paddle.distributed.launch`, torchrun, Open MPI's `mpirun`, the DMLC
tracker of ps-lite, and TensorFlow's TF_CONFIG.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

Message = Mapping[str, Any]
Endpoints = Mapping[str, str]  # "host:port" by process, such as "trainer0"


class Engine(NamedTuple):
    """`variables(spec, process, endpoints)` are what a process finds in addition.

    `serves` says that pservers run the trainers' program unless PSERVER_COMMAND names another; `scheduled` that the
    first node runs it once more, as the scheduler; `listens` that pservers are ready when they listen on their port;
    `leaves` that pservers end by themselves, just before or after the trainers. `ports` says which trainers are told a
    port of their own: "all", the "first" one, or "none".
    """

    variables: Callable[[Message, Message, Endpoints], dict[str, str]]
    ports: str = "none"
    serves: bool = False
    scheduled: bool = False
    listens: bool = False
    leaves: bool = False


def name_of(process: Message) -> str:
    """`trainer0`: how a process is called in endpoints and messages."""
    return f"{process['role']}{process['rank']}"


def has_port(engine: str, process: Message) -> bool:
    """Whether the node chooses a port for a process before it is started; our own pservers choose by themselves."""
    if process["role"] == "trainer":
        ports = ENGINES[engine].ports
        return ports == "all" or (ports == "first" and process["rank"] == 0)
    return not process["ours"]


def _all(role: str, count: int, endpoints: Endpoints) -> list[str]:
    return [endpoints[f"{role}{rank}"] for rank in range(count)]


def _local_size(spec: Message) -> str:
    """How many trainers this node has."""
    return str(sum(process["role"] == "trainer" for process in spec["processes"]))


def _paddle(spec: Message, process: Message, endpoints: Endpoints) -> dict[str, str]:
    host, _, port = endpoints[name_of(process)].rpartition(":")
    return {
        "PADDLE_TRAINERS_NUM": str(spec["trainers"]),
        "PADDLE_TRAINER_ID": str(process["rank"]),
        "PADDLE_PSERVERS_IP_PORT_LIST": ",".join(_all("pserver", spec["pservers"], endpoints)),
        "PADDLE_TRAINER_ENDPOINTS": ",".join(_all("trainer", spec["trainers"], endpoints)),
        "POD_IP": host,
        "PADDLE_PORT": port,
    }


def _torch(spec: Message, process: Message, endpoints: Endpoints) -> dict[str, str]:
    if process["role"] != "trainer":
        return {}
    host, _, port = endpoints["trainer0"].rpartition(":")
    return {
        "MASTER_ADDR": host.strip("[]"),
        "MASTER_PORT": port,
        "RANK": str(process["rank"]),
        "LOCAL_RANK": str(process["index"]),
        "WORLD_SIZE": str(spec["trainers"]),
        "LOCAL_WORLD_SIZE": _local_size(spec),
    }


def _mpi(spec: Message, process: Message, endpoints: Endpoints) -> dict[str, str]:
    if process["role"] != "trainer":
        return {}
    return {
        "OMPI_COMM_WORLD_RANK": str(process["rank"]),
        "OMPI_COMM_WORLD_SIZE": str(spec["trainers"]),
        "OMPI_COMM_WORLD_LOCAL_RANK": str(process["index"]),
        "OMPI_COMM_WORLD_LOCAL_SIZE": _local_size(spec),
        "OMPI_COMM_WORLD_NODE_RANK": str(process["index"]),
    }


def _dmlc(spec: Message, process: Message, endpoints: Endpoints) -> dict[str, str]:
    host, _, port = endpoints["scheduler0"].rpartition(":")
    role = {"pserver": "server", "trainer": "worker"}.get(process["role"], "scheduler")
    ids = {} if role == "scheduler" else {f"DMLC_{role.upper()}_ID": str(process["rank"])}
    return {
        "DMLC_ROLE": role,
        "DMLC_PS_ROOT_URI": host.strip("[]"),
        "DMLC_PS_ROOT_PORT": port,
        "DMLC_NUM_SERVER": str(spec["pservers"]),
        "DMLC_NUM_WORKER": str(spec["trainers"]),
        "DMLC_NODE_HOST": spec["address"],
        **ids,
    }


def _tensorflow(spec: Message, process: Message, endpoints: Endpoints) -> dict[str, str]:
    cluster = {"worker": _all("trainer", spec["trainers"], endpoints)}
    if spec["pservers"]:
        cluster["ps"] = _all("pserver", spec["pservers"], endpoints)
    kind = {"pserver": "ps", "trainer": "worker"}[process["role"]]
    return {"TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": kind, "index": process["rank"]}})}


def _nothing(spec: Message, process: Message, endpoints: Endpoints) -> dict[str, str]:
    return {}


ENGINES: Mapping[str, Engine] = {
    "clusterctl": Engine(_nothing),
    "none": Engine(_nothing),
    "paddle": Engine(_paddle, ports="all", serves=True, listens=True),
    "torch": Engine(_torch, ports="first"),
    "mpi": Engine(_mpi),
    "dmlc": Engine(_dmlc, serves=True, scheduled=True, leaves=True),
    "tensorflow": Engine(_tensorflow, ports="all", listens=True),
}
