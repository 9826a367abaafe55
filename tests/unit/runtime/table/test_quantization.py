"""Numbers in 8 and 4 bits: Q against its definition in plain Python, for all floats, and cut anywhere."""

from __future__ import annotations

import math
import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from clusterctl.runtime.errors import UseError
from clusterctl.runtime.table.initializers import zeros
from clusterctl.runtime.table.quantization import QUANTIZERS, SCALE_ELEMENTS
from clusterctl.runtime.table.rules import SGD
from clusterctl.runtime.table.sharding import BLOCK_ELEMENTS, PART_ELEMENTS
from clusterctl.runtime.table.spec import TableSpec, spec_from_json
from clusterctl.runtime.trainer.packing import _WHOLE_ELEMENTS

TOP = {"int8": 127, "int4": 7}
LARGEST = float(np.float32(1e38))  # the last half step below infinity rounds to it
FINITE = st.floats(-LARGEST, LARGEST, width=32)
LENGTHS = st.integers(0, 3 * SCALE_ELEMENTS)


def numbers(elements: Any = FINITE) -> Any:
    return arrays.arrays(np.float32, LENGTHS, elements=elements)


def by_definition(x: np.ndarray, name: str) -> tuple[bytes, np.ndarray]:
    """Return what Q(x) is in bytes and as numbers, element by element."""
    packed, out = b"", []
    for a in range(0, len(x), 256):
        block = [float(number) for number in x[a : a + 256]]
        scale = np.float32(np.float32(max(map(abs, block))) / np.float32(TOP[name]))
        scale = np.float32(0) if scale < np.finfo(np.float32).tiny else scale
        steps = [round(float(np.float32(number) / scale)) if scale else 0 for number in block]  # half to even
        out += [np.float32(step) * scale for step in steps]
        packed += struct.pack("<f", scale)
        if name == "int8":
            packed += struct.pack(f"{len(steps)}b", *steps)
        else:
            codes = [step + 8 for step in steps] + [8] * (len(steps) % 2)
            packed += bytes(low | high << 4 for low, high in zip(codes[::2], codes[1::2], strict=True))
    return packed, np.array(out, np.float32)


@pytest.mark.parametrize("name", TOP)
@given(x=numbers())
@settings(max_examples=40, deadline=None)
def test_it_is_what_its_definition_says(name: str, x: np.ndarray) -> None:
    packed, out = QUANTIZERS[name].pack(x)
    expected = by_definition(x, name)
    assert packed.tobytes() == expected[0]
    assert out.view(np.uint32).tolist() == expected[1].view(np.uint32).tolist()


@pytest.mark.parametrize("name", TOP)
@given(x=numbers(FINITE | st.sampled_from((math.nan, math.inf, -math.inf))))
@settings(max_examples=40, deadline=None)
def test_both_sides_have_the_same_numbers_even_if_some_are_not_finite(name: str, x: np.ndarray) -> None:
    packed, out = QUANTIZERS[name].pack(x)
    assert len(packed) == QUANTIZERS[name].size(len(x))
    unpacked = QUANTIZERS[name].unpack(np.frombuffer(packed.tobytes(), np.uint8))[: len(x)]
    assert unpacked.tobytes() == out.tobytes()
    for a in range(0, len(x), 256):
        assert np.isfinite(out[a : a + 256]).all() or np.isnan(out[a : a + 256]).all()
        assert np.isnan(out[a]) == (not np.isfinite(x[a : a + 256]).all())


@pytest.mark.parametrize("name", TOP)
def test_what_was_not_sent_is_sent_later(name: str) -> None:
    """The sum of what is sent differs from the sum of the numbers by the last error alone."""
    rng = np.random.default_rng(0)
    owed, given_, sent = np.zeros(600, np.float32), np.zeros(600), np.zeros(600)
    for _ in range(50):
        x = rng.standard_normal(600).astype(np.float32) ** 5
        owed += x
        _, out = QUANTIZERS[name].pack(owed)
        owed -= out
        given_ += x
        sent += out
    np.testing.assert_allclose(given_ - sent, owed, rtol=0, atol=1e-3)


def test_every_cut_of_a_table_is_at_a_multiple_of_256() -> None:
    for elements in (BLOCK_ELEMENTS, PART_ELEMENTS, _WHOLE_ELEMENTS):
        assert elements % SCALE_ELEMENTS == 0


def test_the_bytes_of_a_number_are_few() -> None:
    assert [QUANTIZERS[name].size(2**20) / 2**22 for name in TOP] == [65 / 256, 33 / 256]
    assert [QUANTIZERS[name].size(5) for name in TOP] == [9, 7]


def test_a_spec_names_the_format_only_if_it_has_one() -> None:
    plain = TableSpec("w", "dense", (3,), SGD(1.0), zeros())
    small = TableSpec("w", "dense", (3,), SGD(1.0), zeros(), wire="int4")
    assert "wire" not in plain.to_json()
    assert [spec_from_json(spec.to_json()) for spec in (plain, small)] == [plain, small]
    for one, other in ((plain, small), (small, plain)):
        with pytest.raises(Exception, match="wire: "):
            one.require_same(other, 1)


@pytest.mark.parametrize(("kind", "wire"), [("dense", "int2"), ("dense", "float32"), ("sparse", "int8")])
def test_other_formats_and_other_tables_are_refused(kind: str, wire: str) -> None:
    with pytest.raises(UseError, match=f"table 'w': wire='{wire}'"):
        TableSpec("w", kind, (3,), SGD(1.0), zeros(), wire=wire)
    with pytest.raises(UseError, match="wire="):
        spec_from_json({**TableSpec("w", kind, (3,), SGD(1.0), zeros()).to_json(), "wire": wire})


def test_the_scale_of_a_tiny_block_is_zero() -> None:
    x = np.array([8e-38, -3e-45, math.ldexp(1, -140)], np.float32)
    for quantizer in QUANTIZERS.values():
        assert quantizer.pack(x)[1].tobytes() == bytes(12)
