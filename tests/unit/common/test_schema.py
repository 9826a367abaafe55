"""The schema of JSON: declarations are read, values that do not fit them are refused with their place."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, NamedTuple, TypedDict, get_args

import pytest

from clusterctl.agent.lead.messages import ORDERS
from clusterctl.common import events
from clusterctl.common.schema import (
    Count,
    FieldGroup,
    Finite,
    Moment,
    NotRequired,
    Record,
    SchemaError,
    at_most,
    reader,
    required_keys,
    types_of,
)

Short = Annotated[str, at_most(3)]


class Counted(TypedDict, total=False):
    count: Count | None


class Declared(Counted):
    word: NotRequired[Literal["on", "off"]]
    rows: list[tuple[Moment, Finite, str]]
    names: Mapping[str, Short]
    anything: Any


class Place(NamedTuple):
    t: Moment
    step: Count | None


class Outer(TypedDict):
    inner: Sequence[Declared]


GOOD: dict[str, Any] = {"rows": [[1, 2.5, "a"]], "names": {"x": "abc"}, "anything": [{}]}


@dataclass(frozen=True)
class Sizes(FieldGroup):
    OMITTED = ("most",)

    least: int = 3
    most: int | None = None


@dataclass(frozen=True)
class Box(Record):
    name: str
    pass_: int
    sizes: Sizes = Sizes()
    numbers: tuple[int, ...] = ()
    by_name: Mapping[str, tuple[int, ...]] = field(default_factory=dict)


def test_a_typed_dict_stays_an_object_with_tuples_for_rows_and_with_unknown_keys() -> None:
    read = reader(Outer)({"inner": [{**GOOD, "count": None, "later": 1}]})
    assert read == {"inner": ({**GOOD, "rows": [(1, 2.5, "a")], "count": None, "later": 1},)}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"count": -1}, "`inner[0].count` must be a count, not -1"),
        ({"count": True}, "`inner[0].count` must be a whole number, not True"),
        ({"count": 1 << 63}, "`inner[0].count` must be a whole number, not 9223372036854775808"),
        ({"word": "maybe"}, "`inner[0].word` must be one of 'on', 'off', not 'maybe'"),
        ({"word": []}, "`inner[0].word` must be one of 'on', 'off', not []"),
        ({"rows": [[1, 2.5]]}, "`inner[0].rows[0]` must be an array of 3, not [1, 2.5]"),
        ({"rows": [[1, float("nan"), ""]]}, "`inner[0].rows[0][1]` must be a finite number, not nan"),
        ({"rows": [[1e11, 0, ""]]}, "`inner[0].rows[0][0]` must be a time in seconds, not 100000000000.0"),
        ({"rows": {}}, "`inner[0].rows` must be an array, not {}"),
        ({"names": {"x": "abcd"}}, "`inner[0].names.x` must be at most 3 long, not 'abcd'"),
        ({"names": None}, "`inner[0].names` must be an object, not None"),
    ],
)
def test_a_wrong_value_is_refused_with_its_place(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(SchemaError) as caught:
        reader(Outer)({"inner": [{**GOOD, **changes}]})
    assert str(caught.value) == message


def test_a_missing_key_is_refused_only_if_it_is_required() -> None:
    assert reader(Declared)(GOOD)["rows"]
    assert required_keys(Outer) | required_keys(Declared) == {"inner", "rows", "names", "anything"}
    assert types_of(Declared)["word"] == Literal["on", "off"]
    with pytest.raises(SchemaError, match="`anything` is missing"):
        reader(Declared)({key: value for key, value in GOOD.items() if key != "anything"})
    with pytest.raises(SchemaError, match="it must be an object, not 3"):
        reader(Declared)(3)


def test_a_record_is_written_as_it_was_read_with_its_groups_last_and_unknown_keys_kept() -> None:
    value = {"name": "a", "pass": 1, "numbers": [], "by_name": {"b": [1, 2]}, "least": 4, "later": [1]}
    box = Box.from_json(value)
    assert (box.pass_, box.sizes, box.by_name) == (1, Sizes(4), {"b": (1, 2)})
    assert list(box.to_json().items()) == list(value.items())
    assert box.replace(name="b").to_json() == {**value, "name": "b"}
    assert Box.from_json({"name": "a", "pass": 1}) == Box("a", 1)
    with pytest.raises(dataclasses.FrozenInstanceError):
        box.name = "c"  # type: ignore[misc]


def test_a_named_tuple_is_an_array_of_its_fields() -> None:
    assert reader(Place)([1, None]) == Place(1, None)
    for value, message in (([1], "it must be an array of 2, not [1]"), ([1, -1], "`[1]` must be a count, not -1")):
        with pytest.raises(SchemaError) as caught:
            reader(Place)(value)
        assert str(caught.value) == message


class Chosen(TypedDict):
    one: Place | Counted | list[bool] | None
    other: NotRequired[Sizes | str]


def test_a_value_is_read_as_the_first_of_several_types_that_it_fits() -> None:
    for value, expected in (([1, 2], Place(1, 2)), ([True], [True]), ({"count": 1}, {"count": 1}), (None, None)):
        assert reader(Chosen)({"one": value}) == {"one": expected}
    assert reader(Chosen)({"one": None, "other": {"least": 1}})["other"] == Sizes(1)
    for value, message in (
        ([1, 2, 3], "`one[0]` must be true or false, not 1"),
        ("x", "`one` must be an array, not 'x'"),
    ):
        with pytest.raises(SchemaError) as caught:
            reader(Chosen)({"one": value})
        assert str(caught.value) == message
    with pytest.raises(SchemaError, match="`other` must be a string, not None"):
        reader(Chosen)({"one": None, "other": None})


@pytest.mark.parametrize("kind", [*ORDERS.values(), *get_args(events.Event)])
def test_every_declaration_has_a_reader(kind: Any) -> None:
    with pytest.raises(SchemaError, match="it must be an object"):
        reader(kind)(0)


def test_what_is_no_type_of_json_values_cannot_be_declared() -> None:
    with pytest.raises(TypeError, match="not a type"):
        reader(TypedDict("Bad", {"x": "at_most(3)"}))
