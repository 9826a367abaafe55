"""Tasks of Fabric, on the nodes and on this machine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from clusterctl.cluster import NodeOutcome, combined
from clusterctl.config import Settings
from clusterctl.errors import ClusterctlError

if TYPE_CHECKING:
    from clusterctl.fabric.tasks import TaskFile


def load_tasks(settings: Settings) -> TaskFile:
    """Run the file of tasks beside conf.py."""
    from clusterctl.fabric.tasks import load  # noqa: PLC0415 - it loads fabric

    assert settings.source is not None
    return load(settings.source.absolute().parent)


def problem(outcomes: Sequence[NodeOutcome[ClusterctlError | None]], name: str) -> ClusterctlError | None:
    """Return the error to report if the task failed on some nodes."""
    errors = [failure for outcome in outcomes if (failure := outcome.error or outcome.value)]
    return combined(errors, len(outcomes), f"task {name}") if errors else None
