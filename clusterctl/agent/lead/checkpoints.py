"""What a run has saved, as its lead knows it: pieces that are still missing, checkpoints that stay. Pure."""

from __future__ import annotations

from typing import Any

from clusterctl.agent.lead.actions import Action, DropManifests, Note, Tell, WriteManifest
from clusterctl.agent.lead.checkpoint_retention import Known, Logged, Upkeep

Message = dict[str, Any]


class Savings:
    """Models and checkpoints become whole when every pserver has written its piece; `upkeep` says which stay."""

    def __init__(self, upkeep: Upkeep) -> None:
        self._upkeep = upkeep
        self._receipts: dict[tuple[bool, str], dict[int, Message]] = {}

    def take(self, message: Message, pservers: int) -> list[Action]:
        """A pserver has written its piece."""
        tag, checkpoint = message["tag"], bool(message.get("checkpoint"))
        receipts = self._receipts.setdefault((checkpoint, tag), {})
        receipts[message["rank"]] = message
        if len(receipts) < pservers:
            return []
        whole = [receipts[rank] for rank in sorted(receipts)]
        del self._receipts[checkpoint, tag]
        if checkpoint:
            return [WriteManifest(tag, whole, checkpoint)]
        return [WriteManifest(tag, whole), _note(message)]

    def keep(self, message: Message) -> list[Action]:
        """The manifest of a checkpoint is in place: older ones may go."""
        tag = message["tag"]
        stay = self._upkeep.add(Known(tag, message["step"], message["steps"]))
        order = {"do": "keep", "tags": stay, "newest": stay[-1], "alone": self._upkeep.full}
        return [_note(message, checkpoint=True), DropManifests(stay, stay[-1]), Tell(order)]

    def log(self, message: Message) -> None:
        """A trainer logged what KEEP_BEST goes by."""
        self._upkeep.log(message["rank"], Logged(message["step"], message["value"], message["weight"]))

    def discard(self, tag: str) -> None:
        """A checkpoint turned out to be damaged."""
        self._upkeep.discard(tag)

    def go_back(self, *, forget_logs: bool) -> Message:
        """Processes begin again, from the newest checkpoint (`tag`, `step`) or the beginning; pieces on the way are
        void, and with `forget_logs` what was logged since."""
        self._receipts.clear()
        newest = self._upkeep.newest
        step = newest.step if newest else 0
        if forget_logs:
            self._upkeep.forget_after(step)
        return {"tag": newest.tag if newest else None, "step": step}


def _note(message: Message, **more: bool) -> Note:
    return Note({"event": "saved", "tag": message["tag"], "step": message.get("step"), "complete": True, **more})
