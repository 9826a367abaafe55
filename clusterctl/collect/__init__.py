"""Bring a run's logs, outputs and model home, verified.

May import `cluster`, `common`, `errors`, `inventory` and `runtime`. Start reading at `collect.py`.
"""

from clusterctl.collect.choice import ModelSelection
from clusterctl.collect.collect import Collection, collect
from clusterctl.collect.receive import CollectedFile, Left

__all__ = ["CollectedFile", "Collection", "Left", "ModelSelection", "collect"]
