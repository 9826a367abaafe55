"""Hostile messages: mutants of recorded requests, and requests of random parts for real tables."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator

import numpy as np

from clusterctl.runtime.errors import WireError
from clusterctl.runtime.table.sharding import table_key
from clusterctl.runtime.wire import messages as wire

EVIL = (0, 1, 2, 127, 255, 2**15, 2**16 - 1, 2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**62, 2**63 - 1, 2**63, 2**64 - 1)
THEIRS = {"theirs.w": 150, "theirs.long": 70_000, "theirs.e": 4, "theirs.u": 4}

Frames = list[bytes]


def mutant(valid: Frames, others: list[Frames], rng: random.Random) -> Frames:
    """Return a message like `valid`, with one to three changes."""
    frames = [bytearray(frame) for frame in valid]
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        if rng.random() < 0.12:
            _reshuffle(frames, others, rng)
        elif frames:
            frame = rng.choice(frames)
            _damage(frame, rng.choice((min(len(frame), 128), len(frame))), rng)
    return [bytes(frame) for frame in frames]


def _reshuffle(frames: list[bytearray], others: list[Frames], rng: random.Random) -> None:
    """Return the frames with some repeated, dropped, reordered, or taken from another message."""
    index = rng.randrange(len(frames) + 1)
    what = rng.randrange(3)
    if what == 0:
        frames.insert(index, bytearray(rng.choice(rng.choice(others))))
    elif what == 1 and frames:
        del frames[index - 1]
    else:
        rng.shuffle(frames)


def _damage(frame: bytearray, reach: int, rng: random.Random) -> None:
    """Change bits, bytes, or an aligned number within the first `reach` bytes, or the frame's length."""
    index, what = rng.randrange(reach + 1), rng.randrange(6)
    if what == 0 and index < len(frame):
        frame[index] ^= 1 << rng.randrange(8)
    elif what == 1 and index < len(frame):
        frame[index] = rng.randrange(256)
    elif what == 2:
        del frame[index:]
    elif what == 3:
        frame += rng.randbytes(rng.choice((1, 8, 4096)))
    else:
        size = rng.choice((1, 2, 4, 8))
        index -= index % size
        number = (rng.choice(EVIL) + rng.choice((-1, 0, 1))) % 256**size
        frame[index : index + size] = number.to_bytes(size, "little")


def invented(rng: random.Random) -> Frames:
    """Return a well-formed message of trainer 1 with wrong parts: NaN, foreign or repeated ids, odd shapes."""
    name = rng.choice([*THEIRS, "good.w", "good.e", "nobody's"])
    kind = rng.choice((wire.PULL, wire.PULL, wire.PUSH, wire.PUSH, wire.PUSH, wire.CREATE, wire.HELLO))
    parts = [_part(name, rng) for _ in range(rng.randrange(4))]
    if name.startswith("good") and kind == wire.PUSH:  # a trainer may change them: these shapes do not fit
        parts = [wire.Part(wire.DENSE, np.full(5, np.nan, "f4"), table_key(name), rng.choice((0, 3, 2**63)))]
    message = wire.Message(kind, 1, 5, rng.choice((0, 0, 0, 1, 2**32 - 1)), rng.choice((1, 1, 1, 0)), parts=parts)
    message.step, message.piece = rng.randrange(12), rng.choice((0, 0, 1, 2**32 - 1))
    message.pieces, message.cut = rng.choice((1, 1, 2, 3, 2**32 - 1)), rng.choice((0, 0, 1, 2**32 - 1))
    message.version = rng.choice((0, 1, 9, wire.NEWEST))
    message.samples = rng.choice((0, 1, 3, 2**53 + 1, 2**64 - 1))
    message.flags, message.pass_, message.batch = rng.randrange(256), rng.choice((0, 1, 2**32 - 1)), rng.randrange(20)
    return [bytes(frame) for frame in wire.encode(message)]


def _part(name: str, rng: random.Random) -> wire.Part:
    key, width = table_key(name), THEIRS.get(name, 4)
    count = rng.choice((0, 1, 7, 40, 150))
    what = rng.randrange(6)
    if what == 0:
        values = np.full(count, rng.choice((0.0, np.nan, np.inf, -1e4)), "f4")
        kind, place = rng.choice((wire.DENSE, wire.DENSE, wire.DENSE16)), rng.choice((None, None, 0, 2**40, 2**63))
        return wire.Part(kind, values, key, rng.choice((0, 0, 1, 149, 2**40, 2**64 - 1)), place)
    if what == 1:
        return wire.later_part(key, rng.choice((0, 1, 2, 2**32)))
    if what == 2:
        return wire.Part(wire.SAME, np.frombuffer(rng.randbytes(rng.choice((0, 3, 16))), np.uint8), key)
    if what == 3:
        ids = [rng.choice((rng.randrange(1000), -1, 1000, -(2**63), 2**63 - 1, 7, 7)) for _ in range(count)]
        return wire.Part(wire.IDS, np.array(sorted(ids) if rng.random() < 0.7 else ids, "i8"), key)
    if what == 4:
        shape = (count, rng.choice((width, 1, 4, 5)))
        return wire.Part(
            rng.choice((wire.ROWS, wire.ROWS, wire.ROWS16)),
            np.full(shape, rng.choice((1.0, np.nan, np.inf)), "f4"),
            key,
        )
    return wire.json_part({"name": name, "kind": "dense", "shape": [2**60], "trainers": -1, "tag": "../x"})


def is_wanted(frames: Frames) -> bool:
    """Return True if an input is suitable for these tests.

    A trainer may make tables, save, leave, and take the place of its former attempt. A mutant that does so correctly is
    not an attack, and would only keep the other messages from the code that they are to reach.
    """
    try:
        message = wire.decode(frames)
    except WireError:
        return True
    if message.kind == wire.CREATE:
        with contextlib.suppress(WireError, KeyError, TypeError, ValueError, OverflowError):
            shape = message.json()["shape"]
            return bool(np.prod([abs(float(n)) for n in shape]) < 10_000)
        return True
    return message.kind not in (wire.SAVE, wire.BYE) and not (message.kind == wire.HELLO and message.attempt != 1)


def hostile(recorded: list[Frames], inputs: int, rng: random.Random) -> Iterator[Frames]:
    """Yield `inputs` messages: before each recorded message its mutants and some invented ones, then itself, twice."""
    each = max(3, inputs // len(recorded))
    for valid in recorded:
        for _ in range(each - 2):
            made = invented(rng) if rng.random() < 0.2 else mutant(valid, recorded, rng)
            yield made if is_wanted(made) else valid[:1]
        yield valid
        yield valid
