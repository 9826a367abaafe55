"""docs/security.md and the tests name each other."""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path

from support.places import ROOT

PAGE = (ROOT / "docs/security.md").read_text(encoding="utf-8")
NAMED = re.compile(r"`(tests/[\w/]+\.py)::(test_\w+)`")


@functools.cache
def functions_of(path: Path) -> list[str]:
    return [
        node.name
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    ]


def test_every_test_that_the_page_names_exists() -> None:
    named = NAMED.findall(PAGE)
    assert len(named) > 40
    assert [f"{file}::{name}" for file, name in named if name not in functions_of(ROOT / file)] == []


def test_every_claim_of_the_page_names_its_test() -> None:
    rows = [row for row in PAGE.splitlines() if row.startswith("| ") and not row.startswith(("| claim", "| who"))]
    claims = [row for row in rows if len(row.split(" | ")) == 2]
    assert len(claims) > 30
    assert [row for row in claims if not NAMED.search(row)] == []


def test_every_test_of_security_is_named_on_the_page() -> None:
    ours = [name for path in sorted(Path(__file__).parent.glob("test_*.py")) for name in functions_of(path)]
    about_tests = ("test_this_test_", "test_the_harm_", "test_every_")
    assert [name for name in ours if name not in PAGE and not name.startswith(about_tests)] == []
