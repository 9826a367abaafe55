"""A conf.py that a program has opened: its settings, the connections to its nodes, and lines about their progress."""

from __future__ import annotations

import contextlib
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from clusterctl.api.opening import ClusterOpener
from clusterctl.cluster import Cluster as Nodes
from clusterctl.config import Settings, load
from clusterctl.config.caches import private_cache
from clusterctl.config.loader import choose
from clusterctl.dispatch import Reservations
from clusterctl.errors import UsageError
from clusterctl.escape import clean
from clusterctl.inventory import Node

EVERY_S = 5.0


class ClusterSession:
    """The nodes of a conf.py that `only` selects, and agents that stay there for the next call. Thread-safe.

    `environ` is a copy of the environment of this program, and `conf` absolute: a later change of either, or of the
    working directory, has no effect.
    """

    def __init__(
        self,
        conf: Path,
        chosen: Mapping[str, object],
        only: str | None,
        environ: Mapping[str, str],
        write: Callable[[str], object] | None,
    ) -> None:
        self.progress = ProgressLines(write)
        self.only = only
        self.chosen = texts(chosen)
        self.conf = conf
        self._environ = environ
        self._lock = threading.Lock()
        self.reservations = Reservations(self.cache)
        settings = self.settings({})
        for warning in settings.warnings:
            self.progress.say(f"warning: {warning}")
        self._nodes = self._open(settings)
        self._nodes.__enter__()
        self._close = weakref.finalize(self, self._nodes.__exit__, None, None, None)
        self._release = weakref.finalize(self, self.reservations.close)

    @property
    def nodes(self) -> Nodes:
        """Raises UsageError once the session is closed."""
        if not self._close.alive:
            raise UsageError("this cluster is closed", hint="open another one with Cluster.from_conf")
        return self._nodes

    @property
    def cache(self) -> Path:
        return Path(private_cache(self._environ))

    def settings(self, chosen: Mapping[str, str]) -> Settings:
        """Return the settings of conf.py with `chosen` ones, as text, over those of the session."""
        return load(self.conf, self._environ, chosen={**self.chosen, **chosen})

    @contextlib.contextmanager
    def whole(self, chosen: Mapping[str, str] | None = None) -> Iterator[Nodes]:
        """Yield all nodes, for what cannot be done on some of them, with other settings if any are `chosen`."""
        if self.only is not None:
            raise UsageError(f"a job runs on all its nodes or not at all, and this cluster is only {self.only}")
        if not chosen:
            yield self.nodes
            return
        with self._open(self.settings(chosen)) as nodes:
            yield nodes

    def _open(self, settings: Settings) -> Nodes:
        return ClusterOpener(self._environ, self.only, lambda prompt, stop: None).nodes(settings)

    def close(self) -> None:
        """Close all connections. Safe to call again."""
        with self._lock:
            self._close()
            self._release()


def texts(values: Mapping[str, object]) -> dict[str, str]:
    """Return settings as `--set` would take them: text as it is, other values as Python literals."""
    return choose((name, value if isinstance(value, str) else repr(value)) for name, value in values.items())


class ProgressLines:
    """Hands lines to `write`, one at a time; None discards them. Thread-safe. The lines have no control characters."""

    def __init__(self, write: Callable[[str], object] | None) -> None:
        self._write = write
        self._lock = threading.Lock()

    def say(self, text: str) -> None:
        if self._write is not None:
            with self._lock:
                self._write(clean(text, keep_newlines=True))

    def bytes(self, title: str) -> ByteProgress:
        return ByteProgress(self, title)


class ByteProgress:
    """Counts the bytes of an operation, and says every few seconds how far it is. Thread-safe."""

    def __init__(self, progress: ProgressLines, title: str) -> None:
        self._progress = progress
        self._title = title
        self._lock = threading.Lock()
        self._counts: dict[int | None, tuple[int, int]] = {}
        self._said = time.monotonic()

    def here(self, done: int, total: int) -> None:
        """Take the bytes done so far and in total, on this machine."""
        self._take(None, done, total)

    def on(self, node: Node, done: int, total: int) -> None:
        """Take the bytes done so far and in total, of one node."""
        self._take(node.id, done, total)

    def _take(self, key: int | None, done: int, total: int) -> None:
        with self._lock:
            self._counts[key] = (done, total)
            now = time.monotonic()
            if now - self._said < EVERY_S:
                return
            self._said = now
            done, total = (sum(counts) for counts in zip(*self._counts.values(), strict=True))
        self._progress.say(f"{self._title}: {done / max(total, 1):.0%}")
