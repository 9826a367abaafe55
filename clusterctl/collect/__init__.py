"""Bring a run's logs, outputs and model home, verified.

May import `cluster`, `common`, `errors`, `inventory` and `runtime`. Start reading at `collect.py`.
"""

from clusterctl.collect.choice import Selection
from clusterctl.collect.collect import Collection, collect
from clusterctl.collect.receive import Collected, Left

__all__ = ["Collected", "Collection", "Left", "Selection", "collect"]
