"""The head of a part: a peer may not announce a kind, a width or a place that does not exist."""

from __future__ import annotations

import pytest

from clusterctl.runtime.wire import messages as wire


@pytest.mark.parametrize(
    ("kind", "width", "place", "is_known"),
    [
        (wire.DENSE, 1, 0, True),
        (wire.ROWS, 3, wire.SHARED, True),
        (wire.DENSE, 2, 0, False),
        (wire.IDS, 2, 0, False),
        (wire.ROWS, 0, 0, False),
        (wire.ROWS, 3, wire.SHARED + 1, False),
        (250, 1, 0, False),
    ],
)
def test_a_part_of_an_unknown_form_is_refused(kind: int, width: int, place: int, is_known: bool) -> None:
    if is_known:
        assert wire._dtype(kind, 4, width, place).itemsize == 4
        return
    with pytest.raises(wire.WireError, match="unknown kind"):
        wire._dtype(kind, 4, width, place)
