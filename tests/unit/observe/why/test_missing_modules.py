"""A missing module is compared with the requirements of the job, as the nodes report them."""

from __future__ import annotations

from typing import Any

import pytest

from clusterctl.observe.why.first_cause import Explanation
from unit.observe.histories import History, traceback

GENERIC = "clusterctl setup creates the same environment"


def fails_without(module: str, **facts: Any) -> Explanation:
    """Let a trainer fail to import a module, on nodes that report these facts about their job."""
    history = History()
    for answer in history.answers.values():
        answer.update(facts)
    lines = traceback(f"ModuleNotFoundError: No module named '{module}'")
    return history.fail(1.2, history.exit(1.1, "trainer2", 1, lines)).explain()


def advice(explanation: Explanation) -> str:
    assert explanation.cause is not None
    assert explanation.cause.diagnosis.kind == "import_error"
    return explanation.cause.diagnosis.advice


@pytest.mark.parametrize("module", ["pandas", "pandas.io"])
def test_a_module_that_is_not_required_is_to_be_added(module: str) -> None:
    explanation = fails_without(module, requirements=["numpy"], environment=None)
    assert "pandas is not in requirements.txt" in explanation.notes
    assert advice(explanation).startswith("add pandas to requirements.txt")
    assert "clusterctl setup WORKSPACE" in advice(explanation)


def test_a_project_with_another_name_than_its_module_is_recognized() -> None:
    explanation = fails_without("yaml", requirements=["numpy"])
    assert "yaml (the project pyyaml) is not in requirements.txt" in explanation.notes
    explanation = fails_without("yaml", requirements=["pyyaml"])
    assert "pyyaml is in requirements.txt, but the run had no environment made by clusterctl setup" in explanation.notes
    assert advice(explanation) == "to create it: clusterctl setup WORKSPACE"


def test_a_lock_file_is_named_in_place_of_requirements_txt() -> None:
    explanation = fails_without("pandas", requirements=["numpy"], requirements_file="uv.lock")
    assert "pandas is not in uv.lock" in explanation.notes
    assert advice(explanation).startswith("add pandas to the project and lock it again")


@pytest.mark.parametrize(
    ("module", "facts"),
    [
        ("pandas", {"requirements": None, "environment": None}),
        ("pandas", {"requirements": ["pandas"], "environment": "0123456789abcdef"}),
        ("", {"requirements": []}),
        ("x; rm", {"requirements": []}),
    ],
)
def test_requirements_that_are_unknown_or_have_the_module_explain_nothing(module: str, facts: dict[str, Any]) -> None:
    explanation = fails_without(module, **facts)
    assert not any("requirements.txt" in note for note in explanation.notes)
    assert advice(explanation).startswith(GENERIC)


def test_a_missing_standard_module_is_not_a_matter_of_requirements() -> None:
    assert not any("requirements.txt" in note for note in fails_without("ssl", requirements=[]).notes)
