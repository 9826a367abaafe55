"""The declared answers of agents. tests/contract/verdicts.py has samples of them."""

from __future__ import annotations

from typing import Any

import pytest

from clusterctl.cluster.answers import ANSWERS
from clusterctl.common.schema import SchemaError, reader


@pytest.mark.parametrize("kind", ANSWERS.values(), ids=ANSWERS)
def test_every_declaration_has_a_reader(kind: Any) -> None:
    with pytest.raises(SchemaError, match="it must be an object"):
        reader(kind)(0)
