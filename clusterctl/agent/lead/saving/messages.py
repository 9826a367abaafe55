"""The messages between supervisors and the lead about models, checkpoints and cuts, see `lead.messages`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypedDict

from clusterctl.common.schema import Count, NotRequired

# Reports.


class SavedReport(TypedDict):
    """A pserver has written its piece of a save, or a trainer its state for a checkpoint.

    `states` are the ranks of the trainers whose states belong to the checkpoint. It has the fields of a receipt, all
    of which `manifest.check_receipt` checks.
    """

    do: Literal["saved"]
    role: str
    rank: Count
    attempt: NotRequired[Count]
    tag: NotRequired[str]
    step: NotRequired[Count | None]
    steps: NotRequired[Any]
    checkpoint: NotRequired[Any]
    node: NotRequired[Any]
    file: NotRequired[Any]
    bytes: NotRequired[Any]
    sha256: NotRequired[Any]
    not_finite: NotRequired[Sequence[str]]
    states: NotRequired[Sequence[Count]]


class KeptReport(TypedDict):
    """The manifest of a checkpoint is in place. Only the lead's own supervisor sends it."""

    do: Literal["kept"]
    tag: str
    step: int
    steps: Sequence[int]


class WrittenReport(TypedDict):
    """The manifest of a save is in place, with these `bytes`. Only the lead's own supervisor sends it."""

    do: Literal["written"]
    tag: str
    checkpoint: bool
    bytes: int
    sha256: str


class CopiedReport(TypedDict):
    """An order `of` "copy" or "merge" is carried out, or has failed with a message. `bytes` were copied."""

    do: Literal["copied"]
    tag: str
    of: str
    bytes: Count
    message: NotRequired[str]


class SaveWantedReport(TypedDict):
    """The user wants a checkpoint now. Only the lead's own supervisor sends it, with the number of the request."""

    do: Literal["save_wanted"]
    request: int


class LoggedReport(TypedDict):
    """A trainer logged the metric of KEEP_BEST."""

    do: Literal["logged"]
    rank: Count
    step: Count
    value: float
    weight: float


class CutReport(TypedDict):
    """A pserver's report about a cut; `cut` is the number that the lead gave it.

    By `phase`: "due" for a `purpose`, "held" with the `counts` of pushes that it has of each trainer, its `step` and
    the `passes` that have ended, "made" with the `table_sums` of its lanes, "failed" because pushes of the trainers
    `waits_for` did not come. In sync there is only "announced": the cut is made at `step`.
    """

    do: Literal["cut"]
    role: str
    rank: Count
    phase: str
    attempt: NotRequired[Count]
    cut: NotRequired[Count]
    purpose: NotRequired[Count]
    counts: NotRequired[Sequence[Count]]
    step: NotRequired[Count]
    passes: NotRequired[Count]
    table_sums: NotRequired[Sequence[Count]]
    waits_for: NotRequired[Sequence[Count]]


# Orders.


class KeepOrder(TypedDict):
    """Remove the checkpoints but `tags`; `alone` if those of older runs may go too."""

    do: Literal["keep"]
    tags: Sequence[str]
    newest: str
    alone: bool


class DropModelsOrder(TypedDict):
    """Remove the models `tags`."""

    do: Literal["drop_models"]
    tags: Sequence[str]


class ManifestFile(TypedDict):
    bytes: int
    sha256: str


class CopySaveOrder(TypedDict):
    """Copy the manifest of a save from the `lead`, and the pieces that the nodes `sources` wrote.

    `lead` is the node and the endpoint of its piece server, or None on that node; `sources` are endpoints by node: for
    what lost nodes wrote, those of the nodes in `held_by`.
    """

    do: Literal["copy"]
    tag: str
    checkpoint: bool
    manifest: ManifestFile
    lead: Sequence[Any] | None
    sources: Mapping[str, str]
    held_by: NotRequired[Mapping[str, int]]


class MergeModelOrder(TypedDict):
    """Merge a model of at most `limit_mb` with the interpreter `python`."""

    do: Literal["merge"]
    tag: str
    python: str
    limit_mb: int
    sources: Mapping[str, str]


class CutOrder(TypedDict):
    """An order to the pservers about cut number `cut`, see `runtime.pserver.cut_part`.

    By `order`: "hold", "make" for a `purpose` with the `counts` of the pushes by rank, a `step` and `passes`, "write",
    "drop"; in sync "announce", where `cut` is the number of the request for a checkpoint.
    """

    do: Literal["cut"]
    order: str
    cut: int
    purpose: NotRequired[int]
    counts: NotRequired[Sequence[int]]
    step: NotRequired[int]
    passes: NotRequired[int]
