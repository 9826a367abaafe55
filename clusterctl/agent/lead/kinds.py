"""Types of JSON values that are narrower than those of `records`, for the messages between supervisors."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Callable

from clusterctl.common.records import RecordError
from clusterctl.common.safe_json import is_whole

PLACE = re.compile(r"[\w.:%\[\]-]{1,255}:\d{1,5}", re.ASCII)

if TYPE_CHECKING:
    Whole = int
    Count = int
    Number = float
    Place = str
else:

    class Kind:
        """A type of JSON values that is narrower than those of `records`."""

        def __init__(self, words: str, is_right: Callable[[Any], bool]) -> None:
            self._words = words
            self._is_right = is_right

        def from_json(self, value: Any) -> Any:
            if not self._is_right(value):
                raise RecordError(f"must be {self._words}")
            return value

    Whole = Kind("a whole number of 64 bits", is_whole)
    Count = Kind("a count", lambda value: is_whole(value) and value >= 0)
    Number = Kind("a number", lambda value: isinstance(value, float) or is_whole(value))
    #: Other nodes put it into the environment of their processes.
    Place = Kind("HOST:PORT", lambda value: isinstance(value, str) and PLACE.fullmatch(value) is not None)
