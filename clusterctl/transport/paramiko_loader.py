"""Loads the SSH library once the first server has responded, without the parts that are not needed here."""

from __future__ import annotations

import contextlib
import functools
import importlib
import logging
import sys
import threading
from collections.abc import Iterator
from types import ModuleType

_lock = threading.Lock()


def load() -> ModuleType:
    """Import paramiko once, and return it. Thread-safe."""
    with _lock:
        _silence()
        if "paramiko" not in sys.modules:
            with _stand_in("invoke", None), _stand_in("importlib.metadata", _Metadata("importlib.metadata")):
                importlib.import_module("paramiko")
        return sys.modules["paramiko"]


def load_whole() -> None:
    """Import paramiko with all its parts, for libraries built on it. Thread-safe.

    Such a library must be imported after this: while `load` is at work in another thread, it cannot import invoke.
    """
    with _lock:
        _silence()
        importlib.import_module("paramiko")


class _Metadata(ModuleType):
    """A stand-in for `importlib.metadata`, which paramiko uses to look up the version that it sends to servers.

    The real module imports the email and csv packages for that: a quarter of the whole import time.
    """

    @staticmethod
    def version(name: str) -> str:
        return "0"

    def __getattr__(self, name: str) -> object:  # other importers get the real module
        sys.modules.pop("importlib.metadata", None)
        return getattr(importlib.import_module("importlib.metadata"), name)


@contextlib.contextmanager
def _stand_in(name: str, module: ModuleType | None) -> Iterator[None]:
    """Put `module` into sys.modules under that name while paramiko is imported, unless the real one is loaded.

    None makes Python report the module as missing. paramiko's ssh_config parser, which we do not use, imports invoke
    if it can, and with it asyncio, unittest.mock and yaml: a third of the whole import time.
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
    """Return the exceptions that a failing connection raises."""
    load()
    return (OSError, EOFError, importlib.import_module("paramiko.ssh_exception").SSHException)


def _silence() -> None:
    """Keep paramiko's log and tracebacks off the terminal, unless a handler is attached."""
    logger = logging.getLogger("paramiko")
    if not logger.handlers:
        logger.addHandler(logging.NullHandler())
        logger.propagate = False
        logger.setLevel(logging.CRITICAL)
