"""Findings about the GPUs of the nodes. Pure functions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from clusterctl.check.findings import GB, WARNS, Facts, Finding
from clusterctl.cluster.answers import GpuReport, GpuUser
from clusterctl.inventory import Node

CHECK = "gpus"
BROKEN_HINT = "run nvidia-smi on the node; Host(gpus=0) if the job needs no GPU there"
FEWER_HINT = "correct Host(gpus=...) in conf.py, or see nvidia-smi on the node"
USED_HINT = "end it, wait for it, or choose other GPUs with CUDA_VISIBLE_DEVICES in Host(env=...)"
SHARED_HINT = "start fewer trainers there: TRAINERS_PER_NODE, Host(trainers=...); if they need no GPU: Host(gpus=0)"
MOST_NAMED = 4  # users of a node


def gpus(facts: Facts, nodes: Iterable[Node]) -> Iterator[Finding]:
    """Find a broken driver, fewer GPUs than conf.py says, GPUs that others use, and GPUs that trainers share."""
    for node in nodes:
        report = facts[node.id].get("gpus") if node.id in facts else None
        wanted = node.host.gpus
        if report is not None and report["problem"] is not None:
            yield broken(node.id, report["problem"])
        elif wanted and len(report["gpus"] if report else ()) < wanted and not _divided(report):
            yield Finding(CHECK, WARNS, (node.id,), _fewer(report, wanted), FEWER_HINT)
        if report is not None:
            yield from _used(node.id, report["users"])
            yield from shared((node.id,), len(node.trainer_ranks), len(report["devices"]))


def broken(node: int, problem: str) -> Finding:
    return Finding(CHECK, WARNS, (node,), problem, BROKEN_HINT)


def shared(nodes: tuple[int, ...], trainers: int, devices: int) -> Iterator[Finding]:
    """Find trainers that have to share GPUs. Several nodes may be on one machine."""
    if 0 < devices < trainers:
        of = "1 GPU" if devices == 1 else f"{devices} GPUs"
        yield Finding(CHECK, WARNS, nodes, f"{trainers} trainers share {of}", SHARED_HINT)


def _divided(report: GpuReport | None) -> bool:
    """Return True if GPUs are divided into instances, each of which counts."""
    return report is not None and len(report["devices"]) > len(report["gpus"]) > 0


def _fewer(report: GpuReport | None, wanted: int) -> str:
    if report is None:
        return f"conf.py says gpus={wanted}, but nvidia-smi was not found in PATH"
    found = len(report["gpus"])
    return f"conf.py says gpus={wanted}, but nvidia-smi shows {found or 'none'}"


def _used(node: int, users: Sequence[GpuUser]) -> Iterator[Finding]:
    words = [f"{gpu_name(user)} is in use by {user_name(user)}" for user in users[:MOST_NAMED]]
    if len(users) > MOST_NAMED:
        words.append(f"more uses of its GPUs: {len(users) - MOST_NAMED}; --json lists them")
    yield from (Finding(CHECK, WARNS, (node,), message, USED_HINT) for message in words)


def gpu_name(user: GpuUser) -> str:
    return "a GPU" if user["gpu"] is None else f"GPU {user['gpu']}"


def user_name(user: GpuUser) -> str:
    """Return `pid 812 (python) of alice, 3.2 GB`, as far as it is known."""
    name = f" ({user['name']})" if user["name"] else ""
    whose = f" of {user['job'] or user['account']}" if user["job"] or user["account"] else ""
    return f"pid {user['pid']}{name}{whose}{_size(user['memory'])}"


def _size(memory: int | None) -> str:
    if memory is None:
        return ""
    return f", {memory / GB:,.1f} GB" if memory >= GB else f", {memory / 1e6:,.0f} MB"
