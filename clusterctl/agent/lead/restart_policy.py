"""Whether a process that failed is started once more, and when. Pure: failures and the time go in.

Failures are forgiven after an hour: a job of a weekend may lose a process now and then, a crash loop may not go on.
"""

from __future__ import annotations

from collections.abc import Mapping

FORGIVEN_AFTER_S = 3600.0
FIRST_DELAY_S = 1.0
LONGEST_DELAY_S = 30.0
Key = tuple[str, int]  # role, rank


class RestartPolicy:
    """`allowed` says, by role, how many restarts a process has within an hour."""

    def __init__(self, allowed: Mapping[str, int]) -> None:
        self._allowed = allowed
        self._failures: dict[Key, list[float]] = {}

    def grant(self, key: Key, now: float) -> float | None:
        """A process failed: seconds until it is started again, each time twice as many; None: not again."""
        recent = [t for t in self._failures.get(key, []) if now - t < FORGIVEN_AFTER_S]
        self._failures[key] = [*recent, now]
        if len(recent) >= self._allowed.get(key[0], 0):
            return None
        return float(min(FIRST_DELAY_S * 2 ** len(recent), LONGEST_DELAY_S))

    def describe(self, key: Key) -> str:
        """Such as `restart 1 of 3`."""
        return f"restart {len(self._failures.get(key, []))} of {self._allowed.get(key[0], 0)}"

    def failures(self, key: Key, now: float) -> int:
        """The number of failures of a process that are not forgiven yet."""
        return sum(now - t < FORGIVEN_AFTER_S for t in self._failures.get(key, []))

    def forget(self, key: Key) -> None:
        """Somebody says that it is mended."""
        self._failures.pop(key, None)
