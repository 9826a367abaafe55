"""How a trainer reaches the pservers: the interface, and the link of local mode, with the pserver in this process."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from clusterctl.runtime import wire
from clusterctl.runtime.core import ServerCore
from clusterctl.runtime.environment import Environment
from clusterctl.runtime.errors import BY_NAME, RuntimeFailure
from clusterctl.runtime.manifest import build_manifest, write_manifest
from clusterctl.runtime.members import ModelSource, Reply, Save
from clusterctl.runtime.models import open_model
from clusterctl.runtime.pieces import Cut, write_piece


class Link(Protocol):
    """Carries one request to each of several pservers and brings all replies. Not thread-safe."""

    pservers: int

    def exchange(self, requests: Mapping[int, wire.Message], reply_bytes: int = 0) -> dict[int, wire.Message]:
        """Replies by pserver. Blocks until all are there; raises the error that a pserver answers with.

        `reply_bytes` is about how long a reply may be, so that a slow network gets time for it.
        Arrays of the requests must not change before it returns; arrays of the replies hold until the next call.
        """
        ...

    def close(self) -> None: ...


def raise_for_error(reply: wire.Message) -> None:
    """Raises what a pserver answered with, if that is an error."""
    if reply.kind == wire.ERROR:
        said = reply.json()
        raise BY_NAME.get(str(said.get("error")), RuntimeFailure)(str(said.get("message")))


class LocalLink:
    """One trainer and one pserver in one process, over the same core that the pserver process runs."""

    pservers = 1

    def __init__(self, env: Environment) -> None:
        self._env = env
        self._core = ServerCore(0, 1, 1, seed=env.seed, open_model=self._open_model)

    def exchange(self, requests: Mapping[int, wire.Message], reply_bytes: int = 0) -> dict[int, wire.Message]:
        return {pserver: self._ask(request) for pserver, request in requests.items()}

    def close(self) -> None:
        pass

    def _ask(self, request: wire.Message) -> wire.Message:
        outputs = self._core.handle(0, request)
        for output in outputs:
            if isinstance(output, Save):
                self._write(output)
                outputs += self._core.saved(output.tag)
        [reply] = [o.message for o in outputs if isinstance(o, Reply) and o.message.request == request.request]
        raise_for_error(reply)
        return reply

    def _write(self, save: Save) -> None:
        env, core = self._env, self._core
        cut = Cut(env.job, env.run, save.tag, save.pass_, save.step, core.mode, core.seed, 0, 1)
        receipt = write_piece(env.output_dir, cut, core.tables.values())
        manifest = build_manifest(env.job, env.run, [receipt])
        if manifest is not None:
            write_manifest(env.output_dir / save.tag, manifest)

    def _open_model(self, path: str) -> ModelSource:
        return open_model(Path(path))
