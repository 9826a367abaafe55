"""The SSH library, loaded when the first server has answered, and without what is of no use here."""

from __future__ import annotations

import functools
import logging
import sys
import threading

_lock = threading.Lock()


def load() -> None:
    """Import paramiko, once. Harmless to call from several threads.

    paramiko's reader of ssh_config, which we do not use, imports invoke, and with it asyncio, unittest.mock and
    yaml: a third of the whole import. paramiko takes invoke for not installed when it cannot be imported.
    """
    with _lock:
        _silence()
        absent = "paramiko" not in sys.modules and "invoke" not in sys.modules
        if absent:
            sys.modules["invoke"] = None  # type: ignore[assignment]  # how Python marks a module that must not be found
        try:
            import paramiko  # noqa: F401
        finally:
            if absent:
                del sys.modules["invoke"]


@functools.cache
def errors() -> tuple[type[Exception], ...]:
    """What a connection raises that does not work as it should."""
    load()
    from paramiko.ssh_exception import SSHException

    return (OSError, EOFError, SSHException)


def _silence() -> None:
    """Keep paramiko's own log and tracebacks off the terminal, unless someone attached a handler."""
    logger = logging.getLogger("paramiko")
    if not logger.handlers:
        logger.addHandler(logging.NullHandler())
        logger.propagate = False
        logger.setLevel(logging.CRITICAL)
