"""Keeps a session to the process and the thread that made it: neither its sockets nor its buffers can be shared."""

from __future__ import annotations

import os
import threading

from clusterctl.runtime.errors import UseError

#: The names of the threads that run the parts of `ps.parallel` begin with it.
PART_THREADS = "ps.parallel"


class Guard:
    """Raises UseError for calls from another thread, from a forked process, and after the end of the session."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._thread = threading.get_ident()
        self._name = threading.current_thread().name
        self._has_ended = False

    @property
    def is_of_this_process(self) -> bool:
        return os.getpid() == self._pid

    def end(self) -> None:
        self._has_ended = True

    def check(self, call: str) -> None:
        if threading.get_ident() != self._thread or os.getpid() != self._pid or self._has_ended:
            raise self._misuse(call)

    def _misuse(self, call: str) -> UseError:
        if not self.is_of_this_process:
            where = f"in process {os.getpid()}, but the session belongs to process {self._pid}"
            return UseError(f"{call} {where}", remedy="use it in the process that called connect()")
        name = threading.current_thread().name
        if name.startswith(PART_THREADS):
            return UseError(f"{call} in a part of ps.parallel", remedy="call it before or after ps.parallel")
        if threading.get_ident() != self._thread:
            where = f"in thread {name!r}, but the session belongs to thread {self._name!r}"
            return UseError(f"{call} {where}", remedy="use it in the thread that called connect()")
        return UseError(f"{call} after the end of the session", remedy="keep it inside `with connect() as ps`")
