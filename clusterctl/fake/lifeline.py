"""Start and end the keeper of a cluster of daemons or containers."""

from __future__ import annotations

import os

from clusterctl.common.procfs import Identity, identify, is_alive
from clusterctl.fake.layout import Layout, State
from clusterctl.fake.processes import cut_power
from clusterctl.fake.programs import await_ready, hold, stay

READY_S = 30.0


def start_keeper(layout: Layout, *, remove: bool) -> Identity | None:
    """Start the keeper, with a lifeline from this process. With `remove`, it also removes the cluster's files."""
    request = {"directory": str(layout.directory), "remove": remove}
    keeper = stay("clusterctl.fake.keeper", layout, request, lifeline=True)
    hold(layout, keeper)
    await_ready(keeper, layout, READY_S)
    return identify(keeper.pid)


def end_keeper(state: State | None) -> None:
    """End the keeper, if there is one and it is not this process."""
    keeper = state.server if state is not None else None
    if keeper is not None and keeper.pid != os.getpid():
        cut_power(lambda: [keeper] if is_alive(keeper) else [])
