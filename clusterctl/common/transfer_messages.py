"""The messages that follow the requests `collect` and `setup`: what nodes list, want and send, and the orders to them.

Each side reads those of the other with these declarations, see `common/schema.py`. Nodes may be hostile: the types have
bounds. `common/file_transfer.py` explains how files go from one side to the other.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, TypedDict

from clusterctl.common.events import RunWarning
from clusterctl.common.file_transfer import KnownBytes
from clusterctl.common.manifest import is_piece_name, is_tag
from clusterctl.common.requests import Port, Text
from clusterctl.common.schema import Bound, Count, NotRequired, at_most
from clusterctl.common.tree import ODD_CHARACTERS
from clusterctl.common.wheels import Wheel

#: The directories of a node's files.
TOPS = ("log", "output")
MOST_LEVELS = 32
MOST_NAME_BYTES = 255
MOST_MODELS = 200_000  # that a node lists
MOST_BYTES = 1 << 62
LATEST_NS = 1 << 62  # as a time of change


def is_collected_name(name: str) -> bool:
    """Return True for a path below log/ or output/: a node chooses its files' names, but not where they are stored."""
    parts = name.split("/")
    try:
        long = any(len(os.fsencode(part)) > MOST_NAME_BYTES for part in parts)
    except UnicodeError:
        return False
    odd = any(part in ("", ".", "..") or re.search(ODD_CHARACTERS, part) for part in parts)
    return 2 <= len(parts) <= MOST_LEVELS and parts[0] in TOPS and not odd and not long


def _has_all_or_no_attributes(value: Mapping[str, Any]) -> bool:
    return (value.get("mode") is None) == (value.get("mtime_ns") is None)


# Collect.

Tag = Annotated[str, Bound("the tag of a model", is_tag)]
PieceName = Annotated[str, Bound("the name of a piece", is_piece_name)]
ByteCount = Annotated[Count, Bound(f"at most {MOST_BYTES}", lambda count: count <= MOST_BYTES)]
TimeOfChange = Annotated[int, Bound("a time of change", lambda ns: abs(ns) <= LATEST_NS)]
_MODELS = at_most(MOST_MODELS)
CollectedName = Annotated[str, Bound("a path below log/ or output/", is_collected_name)]


class ListedModel(TypedDict):
    """A complete model, and the files that its manifest names."""

    tag: Tag
    run: str
    step: int
    files: NotRequired[list[PieceName]]


class HeldModel(TypedDict):
    """The pieces that a node has of a model, complete or not."""

    tag: Tag
    step: int
    files: list[PieceName]


class ModelsNews(TypedDict):
    """The first message of a node: the complete models it knows, its pieces of any, and the models merged there."""

    models: Annotated[list[ListedModel], _MODELS]
    held: NotRequired[Annotated[list[HeldModel], _MODELS]]
    merged: NotRequired[Annotated[list[ListedModel], _MODELS]]


class BringOrder(TypedDict):
    """Send the files, of scheduled models those in `bring` (None: all). have: the bytes that are here already."""

    bring: Sequence[Tag] | None
    have: NotRequired[Sequence[KnownBytes]]


class FilesTotal(TypedDict):
    """The bytes of all files, for people only: files may still grow."""

    total: ByteCount


class EmptyDirectory(TypedDict):
    dir: CollectedName


class FileAttributes(TypedDict):
    """A file of `bytes` bytes, of which those after the first `start` follow, and then its `FileHash`."""

    file: CollectedName
    bytes: Count
    start: NotRequired[Count]
    mode: NotRequired[int | None]
    mtime_ns: NotRequired[TimeOfChange | None]


SentFile = Annotated[FileAttributes, Bound("with both mode and mtime_ns, or neither", _has_all_or_no_attributes)]


class FileHash(TypedDict):
    """The hash of the whole file."""

    sha256: str


class ResendOrder(TypedDict, total=False):
    """The answer to `{"sent": count}`, after all files: send these once more, from their start."""

    again: Sequence[CollectedName]


class CollectEnd(TypedDict, total=False):
    """The last message: what was asked for, and the number of files that were sent.

    left: paths that stayed, and why; `more` others are not listed. warnings: about the run.
    """

    job: str
    dir: str
    run: str | None
    files: Count
    left: list[tuple[str, Literal["link", "special", "name"]]]
    more: Count
    warnings: list[RunWarning] | None


# Setup.


class SetupFacts(TypedDict):
    """The facts that a node reports about itself for a setup.

    `glibc`: major and minor version; None for another C library. `pip`: the tool, if there is one. `uv`: the version of
    its uv, if it has one that can build. `environment`: the one built for these requirements, if any, and `lock`: its
    wheels.
    """

    implementation: str
    python: str
    machine: str
    glibc: list[int] | None
    pip: str | None
    uv: NotRequired[str | None]
    environment: NotRequired[str | None]
    lock: list[Wheel] | None


class ResolveOrder(TypedDict):
    """Let pip choose wheels. exact: all lines have hashes, and nothing else is needed."""

    do: Literal["resolve"]
    requirements: Sequence[Text]
    exact: NotRequired[bool]


class ResolvedWheels(TypedDict, total=False):
    """The wheels that pip has chosen, or its output if it failed."""

    lock: list[Wheel]
    failed: str


class OfferOrder(TypedDict):
    """Fetch what you lack of these wheels, if `online`, from `urls` by sha256, else with pip and these options of it.

    uv: a wheel that only the control machine has. The answer is `MissingWheels`.
    """

    do: Literal["offer"]
    lock: Sequence[Wheel]
    online: bool
    options: Sequence[str]
    urls: NotRequired[Mapping[str, str]]
    uv: NotRequired[Wheel | None]


class MissingWheels(TypedDict):
    """The numbers of wheels in an order that the node lacks; have: the bytes that it has of them, by sha256."""

    missing: list[Count]
    have: NotRequired[dict[str, Count]]


class ListenOrder(TypedDict):
    """Listen for a relay. The answer is `RelayEndpoint`, empty if the node cannot."""

    do: Literal["listen"]
    address: Text | None
    nic: Text | None


class RelayEndpoint(TypedDict):
    address: str
    port: Port


class RelayOrder(TypedDict):
    """Take these wheels from the relay, see `dispatch/relay_plan.py`. The answer is `MissingWheels`."""

    do: Literal["relay"]
    relay: dict[str, Any]
    lock: Sequence[Wheel]


class GiveOrder(TypedDict):
    """Send the bytes of these wheels."""

    do: Literal["give"]
    lock: Sequence[Wheel]


class TakeOrder(TypedDict):
    """Take the bytes of these wheels, which follow; of each those after the first `starts`. Answer: `MissingWheels`."""

    do: Literal["take"]
    lock: Sequence[Wheel]
    starts: NotRequired[Sequence[Count]]


class BuildOrder(TypedDict):
    """Build the environment of these wheels, with uv, if it is wanted and there, or was sent."""

    do: Literal["build"]
    lock: Sequence[Wheel]
    with_uv: NotRequired[bool]
    uv: NotRequired[Wheel | None]


class KeepEnvironmentOrder(TypedDict):
    """Keep the environment that is there."""

    do: Literal["keep"]


SETUP_ORDERS: Mapping[str, Any] = {
    "resolve": ResolveOrder,
    "offer": OfferOrder,
    "listen": ListenOrder,
    "relay": RelayOrder,
    "give": GiveOrder,
    "take": TakeOrder,
    "build": BuildOrder,
    "keep": KeepEnvironmentOrder,
}


class SetupEnd(TypedDict):
    """The result: an environment, and if it is new. builder: what built it; problem: why uv could not."""

    environment: str
    built: bool
    builder: NotRequired[str | None]
    problem: NotRequired[str | None]
