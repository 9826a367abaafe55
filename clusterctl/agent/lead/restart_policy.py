"""Decides if and when a failed process restarts. Pure: failures and the time go in.

Failures are forgiven after an hour: a weekend-long job may lose a process now and then, but a crash loop must end.
"""

from __future__ import annotations

from collections.abc import Mapping

from clusterctl.common.events import EndCause

FORGIVEN_AFTER_S = 3600.0
FIRST_DELAY_S = 1.0
LONGEST_DELAY_S = 30.0
Key = tuple[str, int]  # role, rank


class RestartPolicy:
    """`allowed` is the limit of restarts within an hour, by role."""

    def __init__(self, allowed: Mapping[str, int]) -> None:
        self._allowed = allowed
        self._failures: dict[Key, list[float]] = {}

    def grant(self, key: Key, now: float) -> float | None:
        """Count a failure, and return the seconds until the restart, which double each time; None if there is none."""
        recent = [t for t in self._failures.get(key, []) if now - t < FORGIVEN_AFTER_S]
        self._failures[key] = [*recent, now]
        if len(recent) >= self._allowed.get(key[0], 0):
            return None
        return float(min(FIRST_DELAY_S * 2 ** len(recent), LONGEST_DELAY_S))

    def describe(self, key: Key) -> str:
        """A phrase such as `restart 1 of 3`."""
        return f"restart {len(self._failures.get(key, []))} of {self._allowed.get(key[0], 0)}"

    def failures(self, key: Key, now: float) -> int:
        """The number of failures of a process that are not forgiven yet."""
        return sum(now - t < FORGIVEN_AFTER_S for t in self._failures.get(key, []))

    def forget(self, key: Key) -> None:
        """Forgive all failures of a process: the user has fixed it."""
        self._failures.pop(key, None)

    def explain(self, cause: EndCause, key: Key, now: float) -> None:
        """Add to a cause how often the process was restarted before the limit was reached."""
        failures = self.failures(key, now)
        if failures > 1:
            times = "once" if failures == 2 else f"{failures - 1} times"
            cause["message"] += f"; restarted {times}, the RESTARTS limit"
            cause["failures"] = failures
