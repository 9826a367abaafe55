"""Tuples with named fields that need no import of `typing`."""

from __future__ import annotations

import pytest

from clusterctl.common.records import NamedTuple
from clusterctl.common.tree import FILE, Entry


class Pair(NamedTuple):
    first: int
    second: str = "default"

    @property
    def both(self) -> str:
        return f"{self.first} {self.second}"


def test_a_tuple_has_the_fields_defaults_and_methods_that_its_class_declares() -> None:
    pair = Pair(1)
    assert pair == (1, "default") == Pair(first=1)
    assert (pair.first, pair.second, pair.both) == (1, "default", "1 default")
    assert pair._replace(second="other") == Pair(1, "other")
    assert type(pair._replace(first=2)) is Pair
    assert not hasattr(pair, "__dict__")


def test_a_tuple_refuses_missing_and_unknown_fields() -> None:
    with pytest.raises(TypeError):
        Pair()  # type: ignore[call-arg]
    with pytest.raises(TypeError):
        Pair(1, third=3)  # type: ignore[call-arg]
    with pytest.raises(AttributeError):
        Pair(1).first = 2  # type: ignore[misc]
    assert Entry("a", FILE, 0o644, 1).digest == ""
