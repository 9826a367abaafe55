"""The machines of a job from a scheduler: HOSTS that are asked for when a command needs nodes.

May import `common`, `config` and `errors`. Start reading at `resolution.py`.
"""

from clusterctl.schedulers.resolution import cancel, queued, resolve, resolve_all, resolve_job
from clusterctl.schedulers.scheduled import JobWatch, NoRunError, ScheduledJob

__all__ = ["JobWatch", "NoRunError", "ScheduledJob", "cancel", "queued", "resolve", "resolve_all", "resolve_job"]
