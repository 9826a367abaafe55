"""Randomness by position: the global generators of torch, numpy and python, seeded from where the training is."""

from __future__ import annotations

import contextlib
import hashlib
import random
import struct
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch

#: In place of a rank: what all trainers draw alike, since each takes its share of it.
SHARED = 2**32 - 1
#: In place of a batch: the order of a pass, the end of one, and what follows the loop whose last pass it is.
ORDER = 2**64 - 1
END = 2**64 - 2
AFTER = 2**64 - 3


class Position(NamedTuple):
    """A batch of a trainer in a run; `worker` tells apart the processes that read one dataset."""

    seed: int
    rank: int
    pass_: int
    batch: int
    worker: int = 0

    def seed_all(self) -> int:
        """Seed the global generators of this process, and return the seed, below 2**63."""
        packed = struct.pack("<QIIQI", self.seed & (2**64 - 1), *self[1:])
        words = struct.unpack("<8I", hashlib.blake2b(packed, digest_size=32).digest())
        number: int = (words[0] << 32 | words[1]) >> 1
        torch.default_generator.manual_seed(number)  # torch.manual_seed looks for devices, for half a millisecond
        if torch.cuda.is_initialized():
            torch.cuda.manual_seed_all(number)
        np.random.seed(words[2:6])
        random.seed(number)
        return number


@contextlib.contextmanager
def kept_generators() -> Iterator[None]:
    """Leave the global generators as they were."""
    states = torch.default_generator.get_state(), np.random.get_state(), random.getstate()
    devices = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
    try:
        yield
    finally:
        torch.default_generator.set_state(states[0])
        np.random.set_state(states[1])
        random.setstate(states[2])
        if devices:
            torch.cuda.set_rng_state_all(devices)
