"""How a run reacts to the loss of a node, according to conf.py."""

from __future__ import annotations

from clusterctl.common.run_spec import Failures
from clusterctl.config.host_sources import SlurmHosts
from clusterctl.config.settings import Settings
from clusterctl.config.values import OUR_ENGINE


def reaction_to_loss(settings: Settings, nodes: int, *, has_pservers: bool) -> str:
    """Return the reaction to the loss of one of `nodes`: ON_NODE_LOSS, else what ON_TRAINER_LOSS says, else the best.

    The first of two nodes cannot know if the other one is gone, or if Slurm has given both to another life of the job.
    """
    failures = Failures(on_trainer_loss=settings.on_trainer_loss, on_node_loss=settings.on_node_loss)
    ours = settings.engine == OUR_ENGINE and settings.pserver_command is None and has_pservers
    too_few = 2 if isinstance(settings.hosts_from, SlurmHosts) else 1
    is_open = failures.on_node_loss is None and failures.on_trainer_loss == "fail"
    return "move" if is_open and ours and nodes > too_few else failures.node_loss
