"""The architecture drawing is up to date, and every path that the developer pages name exists."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

from support.places import ROOT

DEVELOPER_PAGES = [ROOT / "docs" / "architecture.md", ROOT / "CONTRIBUTING.md"]
NAMED = re.compile(r"`([\w./-]+(?:\.(?:py|md|svg|toml|example)|/))`")  # `agent/lead/`, `docs/why.md`
SYMBOL = re.compile(r"`([A-Z_]{4,}|_?[A-Z]\w+)` in `([\w./-]+\.py)`")  # `OPERATIONS` in `agent/main.py`


def test_the_drawing_shows_the_import_tables() -> None:
    path = ROOT / "docs" / "make_architecture.py"
    spec = importlib.util.spec_from_file_location("make_architecture", path)
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    assert script.PICTURE.read_text(encoding="utf-8") == script.draw(), "run: python docs/make_architecture.py"


@pytest.mark.parametrize("page", DEVELOPER_PAGES, ids=lambda page: page.name)
def test_every_path_on_a_page_exists(page: Path) -> None:
    named = set(NAMED.findall(page.read_text(encoding="utf-8")))
    assert len(named) > 20
    assert [path for path in sorted(named) if not located(path)] == []


@pytest.mark.parametrize("page", DEVELOPER_PAGES, ids=lambda page: page.name)
def test_every_name_that_a_page_locates_exists(page: Path) -> None:
    named = SYMBOL.findall(page.read_text(encoding="utf-8"))
    assert [
        pair for pair in named if not any(pair[0] in path.read_text(encoding="utf-8") for path in located(pair[1]))
    ] == []


def test_every_marker_is_described() -> None:
    markers = re.findall(r'^  "(\w+)[(:]', (ROOT / "pyproject.toml").read_text(encoding="utf-8"), re.MULTILINE)
    assert "slow" in markers
    page = DEVELOPER_PAGES[1].read_text(encoding="utf-8")
    assert [mark for mark in markers if f"| `{mark}` |" not in page and f"pytest.mark.{mark}" not in page] == []


def located(path: str) -> list[Path]:
    """Return the file or directory, relative to the repository or to the package."""
    places = [ROOT / path, ROOT / "clusterctl" / path]
    return [place for place in places if place.exists()]
