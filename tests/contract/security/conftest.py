from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from contract.e2e.conftest import embedded_site, site
from contract.security.liars import Liars

__all__ = ["embedded_site", "site"]


@pytest.fixture
def liars(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Liars]:
    monkeypatch.chdir(tmp_path)
    return Liars(tmp_path, monkeypatch, capsys)
