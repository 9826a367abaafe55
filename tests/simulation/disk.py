"""The run directories of a job on a simulated disk."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from clusterctl.common.run_spec import RunSpec


def digest_of(piece: str) -> str:
    """Return what stands for the sha256 of a piece, which is `STEP:MODEL`."""
    return piece.rpartition(":")[2].rjust(64, "0")


class StoredRun:
    """The directory of a run. Pieces and manifests are synced; the last seconds of its events are not."""

    def __init__(self, spec: RunSpec) -> None:
        self.spec = spec
        self.pieces: dict[tuple[str, str], str] = {}  # by tag and file
        self.manifests: dict[str, dict[str, Any]] = {}
        self.copied: set[tuple[str, str]] = set()  # the pieces of other nodes, and
        self.copies: dict[str, dict[str, Any]] = {}  # the manifests that came with them
        self.events: list[Mapping[str, Any]] = []
        self.stop_asked = False
        self.undone = False  # stopped, because other nodes did not start

        self.ended: Mapping[str, Any] | None = None

    @property
    def phase(self) -> str | None:
        return next((str(event["phase"]) for event in reversed(self.events) if event["event"] == "phase"), None)

    def has(self, tag: str, file: Mapping[str, Any]) -> bool:
        """True if a piece is here as an entry of a manifest describes it."""
        return digest_of(self.pieces.get((tag, file["file"]), "")) == file["sha256"]

    @property
    def is_final(self) -> bool:
        """True if the run was stopped, or has ended for another reason than a lost machine."""
        if self.stop_asked:
            return not self.undone
        end = self.ended or {"state": None}
        return end["state"] in ("succeeded", "failed") and (end.get("cause") or {}).get("kind") != "node_lost"

    def lose_unsynced(self, since: float) -> None:
        """Lose what was written to the event log after a time."""
        self.events = [event for event in self.events if event["t"] < since]
        if self.ended is not None and self.ended["t"] >= since:
            self.ended = None


class Disk:
    def __init__(self, *, dispatched: bool) -> None:
        self.dispatched = dispatched
        self.runs: dict[str, StoredRun] = {}

    @property
    def newest(self) -> str:
        """The name of the newest run, empty if there is none."""
        return max(self.runs, default="")
