"""The machines of a job from a scheduler: HOSTS that are asked for when a command needs nodes.

May import `config` and `errors`. Start reading at `resolution.py`.
"""

from clusterctl.schedulers.resolution import resolve

__all__ = ["resolve"]
