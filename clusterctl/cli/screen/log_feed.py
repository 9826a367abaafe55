"""The log of the process that is selected on a screen."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from clusterctl.cli.screen.screen import LOG_LINES, Screen
from clusterctl.observe.record.model import ProcessRecord, TimedLine

if TYPE_CHECKING:
    from clusterctl.observe.follow import Follower

#: Opens a follower of one process's log.
Open = Callable[[ProcessRecord], "Follower"]


class LogFeed:
    """Fills the screen's `log` while it shows one: one more stream, from one node. A context manager."""

    def __init__(self, screen: Screen, follow: Open) -> None:
        self._screen = screen
        self._follow = follow
        self._shown: ProcessRecord | None = None
        self._over = threading.Event()

    def __enter__(self) -> LogFeed:
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()

    def update(self) -> None:
        """Follow the log that the screen wants; to be called after each key."""
        wanted = self._screen.wanted_log
        if wanted is self._shown:
            return
        self._over.set()
        self._screen.log.clear()
        self._shown = wanted
        if wanted is not None:
            self._over = threading.Event()
            threading.Thread(target=self._receive, args=(wanted, self._over), daemon=True).start()

    def _receive(self, process: ProcessRecord, over: threading.Event) -> None:
        with self._follow(process) as follower:
            for news in follower:
                if over.is_set():
                    return
                for line in news.lines if news is not None else ():
                    self._screen.log.append(TimedLine(line.t, line.text))


def follow_process(follower: Callable[..., Follower]) -> Open:
    """Return a function that opens `follower(nodes, **wanted)` for one process and its last lines."""
    return lambda process: follower([process.node], role=process.role, rank=process.rank, tail=LOG_LINES)
