"""Bring a run's logs, outputs and model home, verified.

May import `cluster`, `common`, `documents`, `errors`, `inventory` and `runtime`. Start reading at `collect.py`.
"""

from clusterctl.collect.choice import ModelSelection
from clusterctl.collect.collect import Collection, collect
from clusterctl.collect.receive import Left

__all__ = ["Collection", "Left", "ModelSelection", "collect"]
