"""Turn a job on the nodes into a run: a pure plan, the keys of the run, and the start on all nodes.

May import `certificates`, `check`, `cluster`, `common`, `config`, `documents`, `errors` and `inventory`. Start
reading at `plan.py`.
"""

from clusterctl.launch.adopt import Adopted, adopt
from clusterctl.launch.load import SavedModel, choose_model
from clusterctl.launch.plan import LaunchPlan, plan
from clusterctl.launch.resume import (
    Resume,
    choose,
    has_checkpoint,
    may_have_checkpoint,
    recorded_settings,
    repeated_settings,
)
from clusterctl.launch.start import Launch, Origin, start

__all__ = [
    "Adopted",
    "Launch",
    "LaunchPlan",
    "Origin",
    "Resume",
    "SavedModel",
    "adopt",
    "choose",
    "choose_model",
    "has_checkpoint",
    "may_have_checkpoint",
    "plan",
    "recorded_settings",
    "repeated_settings",
    "start",
]
