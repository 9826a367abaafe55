"""What the lead goes by and what it decides: values only, between `lead`, which thinks, and `leading`, which acts."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple, Optional, Union

Message = dict[str, Any]


class Policy(NamedTuple):
    """What is done about failures.

    `restarts` within an hour, by role; `on_trainer_loss`, when those of a trainer are spent or its node is lost, is
    "fail", "shrink" or "wait". `together` says that pushes are applied together, so that all go back when a pserver is
    lost; `whole` that processes can only begin again all at once. `time_limit_s` is for the whole run. With
    `standstill_fails` a run in which all wait for each other fails.
    """

    restarts: Mapping[str, int] = MappingProxyType({})
    on_trainer_loss: str = "fail"
    together: bool = True
    whole: bool = False
    time_limit_s: Optional[float] = None  # noqa: UP045 - evaluated at run time on python 3.9
    standstill_fails: bool = False


class SendOrder(NamedTuple):
    """Say `message` to a node's supervisor, or to all (None)."""

    message: Message
    node: Optional[int] = None  # noqa: UP045 - evaluated at run time on python 3.9


class RecordEvent(NamedTuple):
    """Record an event in the lead's log."""

    event: Message


class WriteManifest(NamedTuple):
    """Every pserver has written its pieces of `tag`: make it a whole. Of a checkpoint, say `kept` then."""

    tag: str
    receipts: list[Message]
    checkpoint: bool = False


class DropManifests(NamedTuple):
    """Checkpoints before `newest` are none any more, those that `stay` excepted: nodes will be told to remove them."""

    stay: list[str]
    newest: str


class Finish(NamedTuple):
    """The run has ended."""

    state: str


Action = Union[SendOrder, RecordEvent, WriteManifest, DropManifests, Finish]
