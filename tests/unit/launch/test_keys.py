"""CURVE keys of a run are those that ZeroMQ makes."""

from __future__ import annotations

import zmq
from zmq.utils import z85

from clusterctl.common.curve_keys import z85 as as_z85
from clusterctl.launch.keys import _curve_pair


def test_a_public_key_belongs_to_its_secret_key() -> None:
    for public, secret in (_curve_pair() for _ in range(50)):
        assert zmq.curve_public(secret.encode()) == public.encode()


def test_keys_are_written_as_zeromq_writes_them() -> None:
    for start in range(0, 256, 8):
        key = bytes((start + 37 * i) % 256 for i in range(32))
        assert as_z85(key).encode() == z85.encode(key)
