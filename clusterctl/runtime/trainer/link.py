"""How a trainer reaches the lanes: the interface, and the link of local mode, with the pserver in this process."""

from __future__ import annotations

from pathlib import Path
from typing import Callable, Protocol

import numpy as np

from clusterctl.common.manifest import build_manifest, write_manifest
from clusterctl.runtime.checkpoint.model import open_model
from clusterctl.runtime.checkpoint.writer import write_save
from clusterctl.runtime.environment import Environment
from clusterctl.runtime.errors import BY_NAME, RuntimeFailure
from clusterctl.runtime.pserver.core import ServerCore
from clusterctl.runtime.pserver.trainers import ModelSource, Reply, Save
from clusterctl.runtime.table.sharding import Layout
from clusterctl.runtime.wire import messages as wire

OnReply = Callable[[wire.Message], None]


class Link(Protocol):
    """Carries requests to lanes, many at a time, and brings each one's reply. Not thread-safe.

    Arrays of a request must not change before its reply; arrays of a reply hold only while `on_reply` runs.
    """

    layout: Layout

    def open(self, lane: int, port: int) -> None:
        """Makes a lane reachable, on the host of its pserver; the first lane of each pserver already is."""
        ...

    def post(self, lane: int, message: wire.Message, on_reply: OnReply, full: wire.Message | None = None) -> None:
        """Sends a request. `full` is sent instead when the lane has forgotten a list of ids that `message` names."""
        ...

    def wait(self, done: Callable[[], bool], reply_bytes: int = 0) -> None:
        """Takes replies in until `done()`. Raises the error that a pserver answers with.

        `reply_bytes` is about how long replies may be, so that a slow network gets time for them.
        """
        ...

    def share(self, lane: int, find: wire.Shared) -> None:
        """How to read what a lane's replies say is in shared memory."""
        ...

    def close(self) -> None: ...


def raise_for_error(reply: wire.Message) -> None:
    """Raises what a pserver answered with, if that is an error."""
    if reply.kind == wire.ERROR:
        said = reply.json()
        raise BY_NAME.get(str(said.get("error")), RuntimeFailure)(str(said.get("message")))


class LocalLink:
    """One trainer and one lane in one process, over the same core that the pserver process runs."""

    def __init__(self, env: Environment) -> None:
        self.layout = Layout(1)
        self._env = env
        self._core = ServerCore(0, self.layout, 1, seed=env.seed, open_model=self._open_model)
        self._waiting: dict[int, OnReply] = {}

    def open(self, lane: int, port: int) -> None:
        raise AssertionError("local mode has one lane")

    def share(self, lane: int, find: wire.Shared) -> None:
        raise AssertionError("local mode shares all of its memory")

    def post(self, lane: int, message: wire.Message, on_reply: OnReply, full: wire.Message | None = None) -> None:
        self._waiting[message.request] = on_reply
        with np.errstate(all="ignore"):
            outputs = self._core.handle(0, message)
        for output in outputs:
            if isinstance(output, Save):
                self._write(output)
                outputs += self._core.saved(output.tag)
        for output in outputs:
            if isinstance(output, Reply):
                raise_for_error(output.message)
                self._waiting.pop(output.message.request)(output.message)

    def wait(self, done: Callable[[], bool], reply_bytes: int = 0) -> None:
        assert done(), "a request of local mode was not answered at once"

    def close(self) -> None:
        pass

    def _write(self, save: Save) -> None:
        env = self._env
        receipt = write_save(env, self.layout, 0, save)
        manifest = build_manifest(env.job, env.run, [receipt])
        if manifest is not None:
            write_manifest(env.output_dir / save.tag, manifest)

    def _open_model(self, path: str) -> ModelSource:
        return open_model(Path(path))
