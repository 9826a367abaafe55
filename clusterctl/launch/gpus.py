"""The GPUs of a run: how they are dealt to the trainers of nodes that share them, and doubts about them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TypedDict

from clusterctl.check.findings import Finding
from clusterctl.check.gpus import broken, shared
from clusterctl.cluster.answers import FoundDevices
from clusterctl.common.process_environment import VISIBLE
from clusterctl.common.run_spec import Gpus
from clusterctl.inventory import Node
from clusterctl.launch.plan import LaunchPlan


class NodeWithGpus(TypedDict, total=False):
    """The part of a node's answer about its GPUs."""

    devices: FoundDevices


def check_gpus(launch: LaunchPlan, answers: Mapping[int, NodeWithGpus]) -> list[Finding]:
    """Return a warning for each nvidia-smi that failed; and if conf.py wants GPUs, for trainers that share some."""
    return [*_broken(launch, answers), *_shared(launch, answers)]


def _broken(launch: LaunchPlan, answers: Mapping[int, NodeWithGpus]) -> Iterator[Finding]:
    for node in launch.nodes:
        problem = answers[node.id]["devices"]["problem"]
        if problem is not None:
            yield broken(node.id, problem)


def _shared(launch: LaunchPlan, answers: Mapping[int, NodeWithGpus]) -> Iterator[Finding]:
    """Yield a warning for trainers that share GPUs, if conf.py wants any: many programs use none."""
    seen: set[int] = set()
    for node in launch.nodes:
        if node.id in seen or not (launch.settings.use_gpu or node.host.gpus) or VISIBLE in node.env:
            continue
        together = _together(node, launch, answers)
        seen.update(other.id for other in together)
        ids = tuple(other.id for other in together)
        trainers = sum(len(other.trainer_ranks) for other in together)
        yield from shared(ids, trainers, len(answers[node.id]["devices"]["devices"] or ()))


def dealing(node: Node, launch: LaunchPlan, answers: Mapping[int, NodeWithGpus]) -> Gpus | None:
    """Return what the node has to know to deal its GPUs, None if it finds them and deals them all by itself."""
    if node.host.gpus is not None:
        return Gpus(limit=node.host.gpus)
    together = _together(node, launch, answers)
    if len(together) == 1 or not answers[node.id]["devices"]["devices"]:
        return None
    counts = {other.id: len(other.trainer_ranks) for other in together}
    return Gpus(first=sum(count for id_, count in counts.items() if id_ < node.id), shares=sum(counts.values()))


def _together(node: Node, launch: LaunchPlan, answers: Mapping[int, NodeWithGpus]) -> Sequence[Node]:
    """Return the nodes that share the GPUs of a node. One whose number conf.py gives has them for itself."""
    if node.host.gpus is not None:
        return [node]
    pool = answers[node.id]["devices"]["pool"]
    return [one for one in launch.nodes if one.host.gpus is None and answers[one.id]["devices"]["pool"] == pool]
