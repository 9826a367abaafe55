"""Messages, answers, specs and figures are accepted or refused as recorded, see `contract.verdicts`."""

from __future__ import annotations

import json

import pytest

from contract.verdicts import RECORDED, samples, verdicts


def test_mutated_values_are_accepted_or_refused_as_recorded() -> None:
    assert verdicts() == json.loads(RECORDED.read_text())


@pytest.mark.parametrize("name", [name for name, _, _ in samples()])
def test_a_sample_is_accepted_with_keys_of_newer_versions(name: str) -> None:
    value, read_value = next((value, read) for one, value, read in samples() if one == name)
    read_value({**value, "of_a_newer_version": [1]})
