"""Saves that are being written: which files are missing. Pure."""

from __future__ import annotations

from clusterctl.agent.lead.saving.messages import SavedReport


class PendingSave:
    """The receipts of a save: of all pservers, and of the trainers whose state belongs to it."""

    def __init__(self) -> None:
        self._pieces: dict[int, SavedReport] = {}
        self._states: dict[int, SavedReport] = {}
        self._awaited: set[int] = set()

    def add(self, receipt: SavedReport) -> None:
        """Add a receipt. Pservers say which states belong to the save; one that was restarted may miss some."""
        if receipt.get("role") == "trainer":
            self._states[receipt["rank"]] = receipt
        else:
            self._pieces[receipt["rank"]] = receipt
            self._awaited.update(receipt.get("states", ()))

    def has_pieces(self, pservers: int) -> bool:
        return len(self._pieces) >= pservers

    @property
    def missing(self) -> list[int]:
        """The trainers that have not written their state, by rank."""
        return sorted(self._awaited - self._states.keys())

    @property
    def pieces(self) -> list[SavedReport]:
        return [self._pieces[rank] for rank in sorted(self._pieces)]

    @property
    def states(self) -> list[SavedReport]:
        """The states that belong to the save, by trainer."""
        return [self._states[rank] for rank in sorted(self._awaited)]
