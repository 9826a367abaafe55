"""The SSH library, loaded when the first server has answered, and without what is of no use here."""

from __future__ import annotations

import contextlib
import functools
import logging
import sys
import threading
from collections.abc import Iterator
from types import ModuleType

_lock = threading.Lock()


def load() -> None:
    """Import paramiko, once. Harmless to call from several threads."""
    with _lock:
        _silence()
        if "paramiko" not in sys.modules:
            with _stand_in("invoke", None), _stand_in("importlib.metadata", _Metadata("importlib.metadata")):
                import paramiko  # noqa: F401


class _Metadata(ModuleType):
    """In place of `importlib.metadata`, of which paramiko wants to know its own version, to tell it to servers.

    The real one reads its answer with the email and csv packages: a quarter of the whole import.
    """

    @staticmethod
    def version(name: str) -> str:
        return "0"

    def __getattr__(self, name: str) -> object:  # whoever else imports it meanwhile gets the real one
        sys.modules.pop("importlib.metadata", None)
        import importlib.metadata

        return getattr(importlib.metadata, name)


@contextlib.contextmanager
def _stand_in(name: str, module: ModuleType | None) -> Iterator[None]:
    """While paramiko is imported this is the module of that name, unless the real one is there already.

    None is how Python marks a module that must not be found. paramiko's reader of ssh_config, which we do not use,
    imports invoke if it can, and with it asyncio, unittest.mock and yaml: a third of the whole import.
    """
    if name in sys.modules:
        yield
        return
    sys.modules[name] = module  # type: ignore[assignment]
    try:
        yield
    finally:
        if sys.modules.get(name) is module:
            sys.modules.pop(name, None)


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
