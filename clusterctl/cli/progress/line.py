"""The line below the output: shown once an operation has taken a second, and erased at its end."""

from __future__ import annotations

import contextlib
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Sequence

from clusterctl.cli import style
from clusterctl.cli.console import Console
from clusterctl.cli.progress.operation import Operation
from clusterctl.inventory import Node

APPEARS_S = 1.0
TICK_S = 0.25
PLAIN_EVERY_S = 10.0
ERASE = "\r\x1b[2K"


class ProgressLine:
    """Shows the operation under way: on a terminal one line that redraws itself, else a plain line every 10 s.

    Everything that the console prints appears above the line. Thread-safe.
    """

    def __init__(self, console: Console, *, appears_s: float = APPEARS_S, clock: Callable[[], float] = time.monotonic):
        self._console = console
        self._appears_s = appears_s
        self._clock = clock
        self._lock = threading.RLock()  # reentrant: what is printed within a block hides the line, too
        self._operations: list[Operation] = []
        self._said = 0.0
        self._hidden = 0
        self.is_drawn = False
        console.above_progress = self.hidden

    @contextlib.contextmanager
    def operation(self, title: str, *, plain: bool = True) -> Iterator[Operation]:
        """Show an operation until the end of the block. One inside another takes its place meanwhile."""
        operation = Operation(title, plain=plain, clock=self._clock)
        over = threading.Event()
        try:
            with self._lock:
                self._operations.append(operation)
            if operation is self._operations[0] and not (self._console.json or self._console.quiet):
                self._said = operation.began
                threading.Thread(target=self._keep_showing, args=(over,), name="progress", daemon=True).start()
            yield operation
        finally:
            with self._lock:
                over.set()
                self._operations.remove(operation)
                self._erase()

    @contextlib.contextmanager
    def watch(self, nodes: Sequence[Node]) -> Iterator[Callable[[Node], None]]:
        """Show which of the nodes have not answered. Yield the callback for a node that has."""
        with contextlib.ExitStack() as stack:
            with self._lock:
                current = self._operations[-1] if self._operations else None
            operation = current or stack.enter_context(self.operation(""))
            yield stack.enter_context(operation.waiting(nodes))

    @contextlib.contextmanager
    def hidden(self) -> Iterator[None]:
        """Take the line off the screen for a block that prints, or that prompts the user."""
        with self._lock:
            self._hidden += 1
            was_drawn = self.is_drawn
            self._erase()
        try:
            yield
        finally:
            with self._lock:
                self._hidden -= 1
                if was_drawn and self._operations:
                    self._draw()

    def _keep_showing(self, over: threading.Event) -> None:
        while not over.wait(TICK_S):
            with self._lock, contextlib.suppress(OSError, ValueError):  # the reader of our output may be gone
                if not over.is_set() and not self._hidden:
                    self.update()

    def update(self) -> None:
        """Show the present state of the operation under way, if it is time."""
        now = self._clock()
        if self._console.live:
            if now - self._operations[0].began >= self._appears_s:
                self._draw()
        elif now - self._said >= PLAIN_EVERY_S and self._operations[-1].plain:
            self._said = now
            self._console.note(self._operations[-1].line())

    def _draw(self) -> None:
        if not self._hidden:
            columns = shutil.get_terminal_size().columns
            self._console.draw(ERASE, style.cut(self._operations[-1].line(columns), columns - 1))
            self.is_drawn = True

    def _erase(self) -> None:
        if self.is_drawn:
            self._console.draw(ERASE)
            self.is_drawn = False
