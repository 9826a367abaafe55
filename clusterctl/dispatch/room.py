"""The disk space on the nodes, compared with the space that a dispatch takes, before anything is sent."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping

from clusterctl.cluster import combined
from clusterctl.common.safe_json import is_whole
from clusterctl.dispatch.decision import DiskSpace, DispatchAnswer, Instruction
from clusterctl.errors import NodeError
from clusterctl.inventory import nodeset

SPARE_BYTES = 10_000_000  # to be left: `start` refuses a node with less
LONGEST_PATH = 4096
HINT = "free some space, for example with clusterctl prune, or set ROOT_DIR to a larger file system"


def check_shape(room: DiskSpace) -> None:
    """Raise ValueError if a node's report is malformed."""
    numbers = [room["new"], *(room[name] for name in ("free", "in_place") if room[name] is not None)]
    if not all(is_whole(number) for number in numbers) or not isinstance(room["path"], str):
        raise ValueError(f"malformed report on disk space: {room!r}"[:200])


def check(
    answers: Mapping[int, DispatchAnswer], instructions: Mapping[int, Instruction], of: int, *, allow_partial: bool
) -> dict[int, NodeError]:
    """Return the errors of nodes with too little room. Raise them, unless `allow_partial` and others have enough.

    `of`: the number of nodes of this dispatch.
    """
    errors = too_small(answers, instructions)
    if errors and not (allow_partial and len(errors) < len(answers)):
        error = combined(list(errors.values()), of, "dispatch")
        raise type(error)(
            f"nothing was sent: {error.message}", node=error.node, hint=error.hint or HINT, details=error.details
        )
    return errors


def too_small(answers: Mapping[int, DispatchAnswer], instructions: Mapping[int, Instruction]) -> dict[int, NodeError]:
    """Return an error for each node on whose disk the files do not fit."""
    needs: dict[int, int] = {}
    disks: Counter[str] = Counter()
    for id_, answer in answers.items():
        if "go" in instructions[id_] and "room" in answer:
            room = answer["room"]
            in_place = room["in_place"] if instructions[id_]["supersede"] else None
            needs[id_] = room["new"] if in_place is None else in_place
            disks[room["disk"]] += needs[id_]
    errors = {}
    for id_, need in needs.items():
        room = answers[id_]["room"]
        together = disks[room["disk"]]
        if need and room["free"] is not None and together + SPARE_BYTES > room["free"]:
            sharing = [other for other in needs if answers[other]["room"]["disk"] == room["disk"]]
            errors[id_] = _error(id_, room, need, together, sharing)
    return errors


def _error(id_: int, room: DiskSpace, need: int, together: int, sharing: Collection[int]) -> NodeError:
    more = f"; {nodeset(sharing)} share its disk and need {_size(together)} together" if together > need else ""
    return NodeError(
        f"too little room in {room['path'][:LONGEST_PATH]}: it needs {_size(need)} and {_size(SPARE_BYTES)} to spare, "
        f"and {_size(room['free'] or 0)} are free{more}",
        node=f"node{id_}",
        hint=HINT,
        details={"reason": "no_room", "path": room["path"], "need": need, "free": room["free"]},
    )


def _size(count: int) -> str:
    return f"{count / 1e9:,.1f} GB" if count >= 1e9 else f"{count / 1e6:,.1f} MB"
