"""What goes into and comes out of the core, and what it knows of each trainer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, Union

from clusterctl.runtime import wire
from clusterctl.runtime.errors import BY_NAME, RuntimeFailure
from clusterctl.runtime.placement import Ids
from clusterctl.runtime.pushes import Push
from clusterctl.runtime.spec import TableSpec
from clusterctl.runtime.tables import Floats


class ModelSource(Protocol):
    """A saved model that tables start from."""

    def dense(self, spec: TableSpec, start: int, stop: int) -> Floats | None: ...

    def sparse(self, spec: TableSpec, pserver: int, pservers: int) -> tuple[Ids, Floats] | None: ...


@dataclass(frozen=True)
class Reply:
    rank: int
    message: wire.Message


@dataclass(frozen=True)
class Save:
    """Write this pserver's tables, as they are now, under `tag`; then call `ServerCore.saved(tag)`."""

    tag: str
    step: int
    pass_: int


Output = Union[Reply, Save]


@dataclass
class Member:
    """What a pserver knows of one trainer."""

    attempt: int = 0
    passes: int = 0
    pushed: int = 0
    cursor: tuple[int, int] = (0, 0)
    left: bool = False
    pending: Push | None = None

    def note(self, push: wire.Message) -> None:
        """Counts a push that was applied."""
        self.pushed += 1
        self.cursor = (push.pass_, push.batch + 1)
        if push.flags & wire.LAST_OF_PASS:
            self.passes = max(self.passes, push.pass_ + 1)
            self.cursor = (push.pass_ + 1, 0)


def error_reply(message: wire.Message, failure: RuntimeFailure) -> wire.Message:
    name = type(failure).__name__
    known = name if name in BY_NAME else "RefusedError"
    return message.answer(wire.ERROR, parts=[wire.json_part({"error": known, "message": str(failure)})])
