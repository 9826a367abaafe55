"""Keep-alive messages for nodes that wait their turn: the control machine serves a limited number at once."""

from __future__ import annotations

import contextlib
import threading

from clusterctl.cluster.agent_call import AgentCall
from clusterctl.errors import ClusterctlError

PATIENCE_S = 30.0  # an agent times out after three times as long


class Waiting:
    """The nodes waiting their turn. Keep-alives ensure that they do not time out waiting for the control machine."""

    def __init__(self) -> None:
        self._calls: dict[int, AgentCall] = {}
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._keep_alive, name="waiting-nodes", daemon=True)

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
        """Stop sending keep-alives to a node. From now on only the caller writes to it."""
        with self._lock:
            self._calls.pop(id_, None)

    def _keep_alive(self) -> None:
        while not self._over.wait(PATIENCE_S):
            for id_ in list(self._calls):
                with self._lock, contextlib.suppress(ClusterctlError):  # the thread that serves the node sees it too
                    if id_ in self._calls:
                        self._calls[id_].send({"wait": True})
