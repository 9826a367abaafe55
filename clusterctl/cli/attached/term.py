"""TERM, which ends this program or, for as long as it follows a run, detaches it."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def on_term(act: Callable[[int], None]) -> Iterator[None]:
    """Call `act` with the number of the signal at TERM. If it returns, TERM then acts as it did before.

    Only the main thread can receive signals; in others this does nothing.
    """

    def handle(number: int, frame: object) -> None:
        act(number)
        signal.signal(number, before)
        os.kill(os.getpid(), number)

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
