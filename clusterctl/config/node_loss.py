"""What becomes of a run that loses a node, by the settings."""

from __future__ import annotations

from clusterctl.config.host_sources import SlurmHosts
from clusterctl.config.settings import Settings
from clusterctl.config.values import OUR_ENGINE


def reaction_to_loss(settings: Settings, nodes: int, *, has_pservers: bool) -> str:
    """Return the reaction to the loss of one of `nodes`: ON_NODE_LOSS, else what ON_TRAINER_LOSS says, else the best.

    The first of two nodes cannot know if the other one is gone, or if Slurm has given both to another life of the job.
    """
    if settings.on_node_loss is not None:
        return settings.on_node_loss
    if settings.on_trainer_loss != "fail":
        return "wait" if settings.on_trainer_loss == "wait" else "fail"
    ours = settings.engine == OUR_ENGINE and settings.pserver_command is None and has_pservers
    return "move" if ours and nodes > (2 if isinstance(settings.hosts_from, SlurmHosts) else 1) else "fail"
