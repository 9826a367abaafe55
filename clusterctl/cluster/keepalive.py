"""Nodes that wait for the control machine, which serves only so many at once."""

from __future__ import annotations

import contextlib
import threading

from clusterctl.cluster.cluster import AgentCall
from clusterctl.errors import ClusterctlError

PATIENCE_S = 30.0  # an agent gives up after three times as long


class Waiting:
    """Nodes whose turn will come. They are told so now and then, lest they take the control machine for gone."""

    def __init__(self) -> None:
        self._calls: dict[int, AgentCall] = {}
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._comfort, name="waiting-nodes", daemon=True)

    def __enter__(self) -> Waiting:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def add(self, id_: int, call: AgentCall) -> None:
        with self._lock:
            self._calls[id_] = call

    def leave(self, id_: int) -> None:
        """From now on only the caller talks to this node."""
        with self._lock:
            self._calls.pop(id_, None)

    def _comfort(self) -> None:
        while not self._over.wait(PATIENCE_S):
            for id_ in list(self._calls):
                with self._lock, contextlib.suppress(ClusterctlError):  # whoever serves it will see
                    if id_ in self._calls:
                        self._calls[id_].send({"wait": True})
