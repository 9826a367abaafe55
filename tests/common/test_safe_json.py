"""The bounds on JSON of untrusted senders: what is exactly as long or as deep as allowed is read."""

from __future__ import annotations

import pytest

from clusterctl.common.safe_json import parse


def test_a_text_of_exactly_the_limit_is_read_and_one_byte_more_is_refused() -> None:
    assert parse(b'"abcd"', most_bytes=6) == "abcd"
    with pytest.raises(ValueError, match="too long"):
        parse(b'"abcde"', most_bytes=6)


def test_lists_as_deep_as_the_limit_are_read_and_one_level_more_is_refused() -> None:
    assert parse("[[[]]]", deepest=3) == [[[]]]
    with pytest.raises(ValueError, match="nested too deeply"):
        parse("[[[[]]]]", deepest=3)
    assert parse("[[], [], [], []]", deepest=3) == [[], [], [], []]
