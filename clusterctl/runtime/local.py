"""Local mode: the pserver core runs in the trainer's process. The only module that knows both sides."""

from __future__ import annotations

from pathlib import Path
from typing import Callable

import numpy as np

from clusterctl.common.manifest import build_manifest, write_manifest
from clusterctl.runtime.checkpoint.model import open_model
from clusterctl.runtime.checkpoint.writer import Save, write_save
from clusterctl.runtime.environment import Environment
from clusterctl.runtime.pserver.core import ServerCore
from clusterctl.runtime.pserver.lane_state import LaneState, Reply
from clusterctl.runtime.store.factory import ModelSource
from clusterctl.runtime.table.sharding import Layout
from clusterctl.runtime.trainer.link import OnReply, raise_for_error
from clusterctl.runtime.wire import messages as wire


class LocalLink:
    """The link of local mode: one trainer and one lane in one process, over the core that pserver processes run."""

    def __init__(self, env: Environment) -> None:
        self.layout = Layout(1)
        self._env = env
        self._core = ServerCore(LaneState(0, self.layout, 1, seed=env.seed), self._open_model)
        self._waiting: dict[int, OnReply] = {}

    def open(self, lane: int, port: int) -> None:
        raise AssertionError("local mode has one lane")

    def share(self, lane: int, find: wire.Shared) -> None:
        raise AssertionError("local mode shares all its memory")

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
        assert done(), "a request in local mode was not answered at once"

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
