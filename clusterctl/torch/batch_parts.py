"""Where in a batch the ids of an embedding are, so that the rows of the next batch can be requested with a push."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Callable

#: The keys that lead to a part of a batch, through lists, tuples and dicts.
Path = tuple[Any, ...]

_SEARCHES = 3


class IdsInBatch:
    """Learns which part of each batch is passed to one embedding, by the calls that it sees in training."""

    def __init__(self) -> None:
        self._path: Path | None = None
        self._misses = 0
        self._seen: list[Any] = []  # two if they differ: then there is no such part

    def see(self, ids: Any) -> None:
        if len(self._seen) < 2 and not any(ids is one for one in self._seen):
            self._seen.append(ids)

    def following(self, batch: Any, read_ahead: Callable[[], Any]) -> Any:
        """Return the ids in the batch that `read_ahead()` returns, and forget the calls; None if the part is unknown.

        `batch` is that of the calls. Nothing is read ahead if its part is unknown.
        """
        seen, self._seen = self._seen, []
        if len(seen) != 1 or not self._is_known(seen[0], batch):
            return None
        assert self._path is not None
        return part_of(read_ahead(), self._path)

    def _is_known(self, ids: Any, batch: Any) -> bool:
        if self._path is not None and part_of(batch, self._path) is ids:
            self._misses = 0
            return True
        if self._misses == _SEARCHES:  # the program makes the ids itself, and a search of a large batch takes long
            return False
        self._misses += 1
        found = path_of(ids, batch)
        self._path = self._path if found is None else found
        return found is not None


def path_of(part: Any, batch: Any) -> Path | None:
    """Return the path to an object in a batch, or None if it is not there."""
    if batch is part:
        return ()
    if isinstance(batch, (list, tuple)):
        batch = dict(enumerate(batch))
    for key, value in batch.items() if isinstance(batch, Mapping) else ():
        path = path_of(part, value)
        if path is not None:
            return (key, *path)
    return None


def part_of(batch: Any, path: Path) -> Any:
    """Return the part of the batch that the path leads to, or None if it leads nowhere."""
    for key in path:
        try:
            batch = batch[key]
        except (LookupError, TypeError):
            return None
    return batch
