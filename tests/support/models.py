"""Models that were saved, compared to the bit."""

from __future__ import annotations

from pathlib import Path

from clusterctl.runtime import load_model


def model_bits(model: Path) -> dict[str, bytes]:
    """Return the bytes of each table of a model; those of an embedding are its ids and its rows."""
    tables = {name: table if isinstance(table, tuple) else (table,) for name, table in load_model(model).items()}
    return {name: b"".join(part.tobytes() for part in parts) for name, parts in tables.items()}


def assert_same_bits(model: Path, expected: dict[str, bytes]) -> None:
    """Compare a model with the bits of another; only names of tables that differ are shown."""
    bits = model_bits(model)
    assert sorted(bits) == sorted(expected)
    assert [name for name in bits if bits[name] != expected[name]] == []
