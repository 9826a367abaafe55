"""JSON of this account, and the bounds on that of others; tests/contract/security/test_bombs.py has hostile texts."""

from __future__ import annotations

import json

import pytest

from clusterctl.common.safe_json import dumps, loads, parse

TEXT = 'quote " back \\ line \n \u00fc \u2028 \U0001f989'
VALUE = {"a": [1, 2.5, -1e300, None, True, {}], "text": TEXT, "b": float("inf")}


def test_json_is_written_on_one_line_without_spaces() -> None:
    packed = json.dumps(VALUE, separators=(",", ":")).encode()
    assert dumps(VALUE) == packed
    assert loads(packed) == loads(b"\n" + json.dumps(VALUE, indent=1).encode() + b"\n") == VALUE


@pytest.mark.parametrize("text", [b"", b"{", b"{} {}", b"nope", b"\xff", b"[1,]", b"{'a': 1}"])
def test_invalid_json_is_a_value_error(text: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - as of json, with whatever words
        loads(text)


def test_a_text_of_exactly_the_limit_is_read_and_one_byte_more_is_refused() -> None:
    assert parse(b'"abcd"', most_bytes=6) == "abcd"
    with pytest.raises(ValueError, match="too long"):
        parse(b'"abcde"', most_bytes=6)


def test_lists_as_deep_as_the_limit_are_read_and_one_level_more_is_refused() -> None:
    assert parse("[[[]]]", deepest=3) == [[[]]]
    with pytest.raises(ValueError, match="nested too deeply"):
        parse("[[[[]]]]", deepest=3)
    assert parse("[[], [], [], []]", deepest=3) == [[], [], [], []]
