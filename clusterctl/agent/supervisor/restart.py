"""The restart of processes: the old ones and their leftovers end before the new ones begin."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Callable

from clusterctl.agent.lead.messages import RecoveryPoint
from clusterctl.agent.supervisor.child import Child
from clusterctl.agent.supervisor.orphans import OrphanCleaner
from clusterctl.agent.supervisor.run_context import RunContext
from clusterctl.common.run_spec import PieceSource, PieceSources, Recovery, RunSpec

POLL_S = 0.05


def recovery(spec: RunSpec, point: RecoveryPoint) -> Recovery:
    """Return the entry of the spec for a point of recovery."""
    known = Recovery(point["tag"], point["step"], point.get("left", {}))
    if point["tag"] is None or "pieces" not in point:
        return known
    pieces = tuple(PieceSource.from_json(piece) for piece in point["pieces"])
    return known.replace(sources=PieceSources(spec.job, spec.run, point["tag"], pieces))


class Restart:
    """The restart of `old`, whose next attempts are `attempts`, by name, after at least `in_s`.

    A later order for one of them, `is_overtaken`, or the end of the run cancels it silently.
    """

    def __init__(
        self,
        context: RunContext,
        orphans: OrphanCleaner,
        old: Sequence[Child],
        attempts: Mapping[str, int],
        in_s: float,
        is_overtaken: Callable[[], bool],
    ) -> None:
        self._context = context
        self._orphans = orphans
        self._old = old
        self._attempts = attempts
        self._not_before = context.loop.now() + in_s
        self._is_overtaken = is_overtaken
        for child in old:
            child.next_attempt, child.state = attempts[child.name], "restarting"

    def begin(self, put: Callable[[Sequence[Child]], None]) -> None:
        """Call `put(old)` when the old processes, which are being ended, and their leftovers are gone."""
        if self._is_over():
            return
        if any(child.alive for child in self._old):
            self._context.loop.after(POLL_S, lambda: self.begin(put))
        else:
            self._orphans.clear(lambda: self._wait(put), self._old)

    def _wait(self, put: Callable[[Sequence[Child]], None]) -> None:
        rest_s = self._not_before - self._context.loop.now()
        if self._is_over():
            return
        if rest_s > 0:
            self._context.loop.after(rest_s, lambda: self._wait(put))
            return
        for child in self._old:
            child.close()
        put(self._old)

    def _is_over(self) -> bool:
        later = any(child.next_attempt > self._attempts[child.name] for child in self._old)
        return later or self._context.is_over() or self._is_overtaken()
