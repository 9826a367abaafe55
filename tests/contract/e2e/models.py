"""Bit-for-bit comparison of collected models."""

from __future__ import annotations

from typing import Any

from clusterctl.runtime import load_model
from support.site import Site


def model_of(site: Site, job: str) -> dict[str, Any]:
    """Collect a job and return its model."""
    site.ok("collect", job, "-o", "home")
    return load_model(site.directory / "home" / "model")


def assert_same(model: dict[str, Any], expected: dict[str, Any]) -> None:
    """Compare the dense tables `w` and `wide` and the embedding `e`."""
    assert sorted(model) == sorted(expected) == ["e", "w", "wide"]
    for name in ("w", "wide"):
        assert model[name].tobytes() == expected[name].tobytes(), name
    assert [array.tobytes() for array in model["e"]] == [array.tobytes() for array in expected["e"]]
