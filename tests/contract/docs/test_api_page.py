"""docs/api.md has every public name of the API, and the programs of examples/api to the letter."""

from __future__ import annotations

import dataclasses
import inspect
from typing import Any

import pytest

import clusterctl
from contract.docs.pages import Block, blocks
from support.places import ROOT

PAGE = ROOT / "docs" / "api.md"
TEXT = PAGE.read_text(encoding="utf-8")
VALUES = [getattr(clusterctl, name) for name in clusterctl.__all__]
CALLED = (clusterctl.Cluster, clusterctl.Job, clusterctl.Run, clusterctl.Metrics)


def shown(name: str) -> bool:
    return any(f"`{name}{end}" in TEXT for end in ("`", "("))


@pytest.mark.parametrize("name", clusterctl.__all__)
def test_every_public_name_is_described(name: str) -> None:
    assert shown(name)


@pytest.mark.parametrize("value", VALUES, ids=clusterctl.__all__)
def test_every_field_and_property_of_a_value_is_described(value: Any) -> None:
    names = {field.name for field in dataclasses.fields(value)} if dataclasses.is_dataclass(value) else set()
    names |= {name for name, member in vars(value).items() if isinstance(member, property) and name[0] != "_"}
    assert [name for name in sorted(names) if not shown(name)] == []


@pytest.mark.parametrize("kind", CALLED, ids=lambda kind: kind.__name__)
def test_every_method_is_described_with_its_parameters(kind: type) -> None:
    methods = {name: member for name, member in inspect.getmembers(kind, inspect.isroutine) if name[0] != "_"}
    methods.pop("of", None)
    for name, method in methods.items():
        parameters = list(inspect.signature(method).parameters.values())
        stars = ["*, " if keyword_only_begins(parameters, at) else "" for at in range(len(parameters))]
        words = [star + one.name for star, one in zip(stars, parameters, strict=True) if one.name != "self"]
        call = f"{name}({', '.join(words)})"
        assert f"`{call}`" in TEXT or f"`{kind.__name__}.{call}`" in TEXT, call


def keyword_only_begins(parameters: list[inspect.Parameter], at: int) -> bool:
    kinds = [one.kind is inspect.Parameter.KEYWORD_ONLY for one in parameters]
    return kinds[at] and not any(kinds[:at])


def of_files() -> list[Any]:
    return [pytest.param(block, id=block.note) for block in blocks(PAGE, "python") if block.note]


@pytest.mark.parametrize("block", of_files())
def test_the_page_shows_the_programs_as_they_are(block: Block) -> None:
    assert block.body == (ROOT / block.note).read_text(encoding="utf-8")


def test_the_page_shows_all_programs() -> None:
    programs = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "examples/api").glob("*.py"))
    assert sorted(param.id for param in of_files()) == programs
