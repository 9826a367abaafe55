"""The log of the process that is selected on a screen."""

from __future__ import annotations

from clusterctl.cli.screen.screen import LOG_LINES, Screen
from clusterctl.observe.follow import Follower, News
from clusterctl.observe.record.model import ProcessRecord, TimedLine


class LogFeed:
    """Fills the screen's `log` while it shows one, with lines that the follower of the run delivers besides."""

    def __init__(self, screen: Screen, follower: Follower) -> None:
        self._screen = screen
        self._follower = follower
        self._shown: ProcessRecord | None = None

    def update(self) -> None:
        """Follow the log that the screen wants; to be called after each key."""
        wanted = self._screen.wanted_log
        if wanted is not self._shown:
            self._screen.log.clear()
            self._shown = wanted
            self._follower.show(wanted, LOG_LINES)

    def take(self, news: News | None) -> None:
        """Take the lines of the log; to be called with all news."""
        if news is None or not news.shown or self._shown is None:
            return
        if news.anew:
            self._screen.log.clear()
        self._screen.log.extend(TimedLine(line.t, line.text) for line in news.shown)
