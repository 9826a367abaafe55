"""The messages between supervisors and the lead about models, checkpoints and cuts, see `lead.messages`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypedDict

from clusterctl.common.schema import Count

# Reports.


class _SaveFacts(TypedDict, total=False):
    """Some fields of a receipt; `manifest.check_receipt` checks all."""

    attempt: Count
    tag: str
    step: Count | None
    steps: Any
    checkpoint: Any
    node: Any
    not_finite: Sequence[str]
    states: Sequence[Count]


class Saved(_SaveFacts):
    """A pserver has written its piece of a save, or a trainer its state for a checkpoint.

    `states` are the ranks of the trainers whose states belong to the checkpoint.
    """

    do: Literal["saved"]
    role: str
    rank: Count


class Kept(TypedDict):
    """The manifest of a checkpoint is in place. Only the lead's own supervisor sends it."""

    do: Literal["kept"]
    tag: str
    step: int
    steps: Sequence[int]


class Written(TypedDict):
    """The manifest of a save is in place, with these `bytes`. Only the lead's own supervisor sends it."""

    do: Literal["written"]
    tag: str
    checkpoint: bool
    bytes: int
    sha256: str


class _CopyFacts(TypedDict, total=False):
    message: str


class Copied(_CopyFacts):
    """An order `of` "copy" or "merge" is carried out, or has failed with a message. `bytes` were copied."""

    do: Literal["copied"]
    tag: str
    of: str
    bytes: Count


class SaveWanted(TypedDict):
    """The user wants a checkpoint now. Only the lead's own supervisor sends it, with the number of the request."""

    do: Literal["save_wanted"]
    request: int


class Logged(TypedDict):
    """A trainer logged the metric of KEEP_BEST."""

    do: Literal["logged"]
    rank: Count
    step: Count
    value: float
    weight: float


class _CutFacts(TypedDict, total=False):
    attempt: Count
    cut: Count
    purpose: Count
    counts: Sequence[Count]
    step: Count
    passes: Count
    table_sums: Sequence[Count]
    waits_for: Sequence[Count]


class CutReport(_CutFacts):
    """A pserver's report about a cut; `cut` is the number that the lead gave it.

    By `phase`: "due" for a `purpose`, "held" with the `counts` of pushes that it has of each trainer, its `step` and
    the `passes` that have ended, "made" with the `table_sums` of its lanes, "failed" because pushes of the trainers
    `waits_for` did not come. In sync there is only "announced": the cut is made at `step`.
    """

    do: Literal["cut"]
    role: str
    rank: Count
    phase: str


# Answers to requests of the user, by the lead's supervisor.


class SaveAnswer(TypedDict, total=False):
    """Either `tag` and `step` of a complete checkpoint, or `why` there is none; `again`: asking again may help."""

    tag: str
    step: int
    why: str
    again: bool


# Orders.


class Keep(TypedDict):
    """Remove the checkpoints but `tags`; `alone` if those of older runs may go too."""

    do: Literal["keep"]
    tags: Sequence[str]
    newest: str
    alone: bool


class DropModels(TypedDict):
    """Remove the models `tags`."""

    do: Literal["drop_models"]
    tags: Sequence[str]


class ManifestFile(TypedDict):
    bytes: int
    sha256: str


class Copy(TypedDict):
    """Copy the manifest of a save from the `lead`, and the pieces that the nodes `sources` wrote.

    `lead` is the node and the endpoint of its piece server, or None on that node; `sources` are endpoints by node.
    """

    do: Literal["copy"]
    tag: str
    checkpoint: bool
    manifest: ManifestFile
    lead: Sequence[Any] | None
    sources: Mapping[str, str]


class Merge(TypedDict):
    """Merge a model of at most `limit_mb` with the interpreter `python`."""

    do: Literal["merge"]
    tag: str
    python: str
    limit_mb: int
    sources: Mapping[str, str]


class _CutOrderFacts(TypedDict, total=False):
    purpose: int
    counts: Sequence[int]
    step: int
    passes: int


class CutOrder(_CutOrderFacts):
    """An order to the pservers about cut number `cut`, see `runtime.pserver.cut_part`.

    By `order`: "hold", "make" for a `purpose` with the `counts` of the pushes by rank, a `step` and `passes`, "write",
    "drop"; in sync "announce", where `cut` is the number of the request for a checkpoint.
    """

    do: Literal["cut"]
    order: str
    cut: int
