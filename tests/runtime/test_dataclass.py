"""Our dataclasses behave as those of the standard library."""

from __future__ import annotations

import dataclasses
import inspect
from typing import Any, ClassVar

import pytest

from clusterctl.runtime import dataclass as ours


def make(module: Any) -> dict[str, Any]:
    """Return the same classes, made by our module or by the standard library."""

    @module.dataclass(frozen=True)
    class Point:
        count: ClassVar[int] = 7
        x: int
        y: int = 2

        def __post_init__(self) -> None:
            if self.x < 0:
                raise ValueError("x is negative")

    @module.dataclass(frozen=True)
    class Named(Point):
        name: str = "a"
        y: int = 5

        def __repr__(self) -> str:
            return f"<{self.name}>"

    @module.dataclass
    class Box:
        size: float
        items: list[int] = module.field(default_factory=list)

    @module.dataclass(frozen=True, init=False)
    class Own:
        a: int

        def __init__(self) -> None:
            object.__setattr__(self, "a", 3)

    @module.dataclass(frozen=True, repr=False)
    class Silent:
        a: int = 1

    return {"Point": Point, "Named": Named, "Box": Box, "Own": Own, "Silent": Silent}


OURS, THEIRS = make(ours), make(dataclasses)


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("Point", (1,)),
        ("Point", (1, 3)),
        ("Named", (1, 2, "b")),
        ("Box", (1.5,)),
        ("Box", (1.5, [4])),
        ("Own", ()),
    ],
)
def test_values_look_and_compare_alike(name: str, values: tuple[Any, ...]) -> None:
    one, same, theirs = OURS[name](*values), OURS[name](*values), THEIRS[name](*values)
    assert vars(one) == vars(theirs)
    assert repr(one) == repr(theirs)
    assert one == same
    assert one != theirs
    if name != "Box":
        assert hash(one) == hash(theirs)


@pytest.mark.parametrize("name", ["Point", "Named", "Own", "Silent"])
def test_signatures_are_those_of_the_standard_library(name: str) -> None:
    theirs = inspect.signature(THEIRS[name])
    assert list(inspect.signature(OURS[name]).parameters.values()) == list(theirs.parameters.values())


def test_each_value_gets_a_default_of_its_own() -> None:
    one, other = OURS["Box"](1.0), OURS["Box"](1.0)
    one.items.append(1)
    assert other.items == []
    assert not hasattr(OURS["Box"], "items")


def test_a_value_of_a_frozen_class_cannot_be_changed() -> None:
    point = OURS["Point"](1)
    with pytest.raises(AttributeError, match="'x' of Point, which is frozen"):
        point.x = 2
    with pytest.raises(AttributeError, match="frozen"):
        del point.x
    with pytest.raises(TypeError):
        hash(OURS["Box"](1.0))


def test_replace_makes_a_checked_copy() -> None:
    point = OURS["Named"](1, 2, "b")
    assert vars(ours.replace(point, x=4)) == {"x": 4, "y": 2, "name": "b"}
    with pytest.raises(ValueError, match="x is negative"):
        ours.replace(point, x=-1)


def test_constants_of_a_class_are_no_fields_and_a_missing_value_is_an_error() -> None:
    assert OURS["Point"](1).count == 7
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'x'"):
        OURS["Point"]()
    assert repr(OURS["Silent"]()).startswith("<")
