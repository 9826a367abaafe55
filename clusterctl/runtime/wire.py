"""The messages between trainers and pservers, and their frames. The only place that knows the bytes.

A message is one ZeroMQ multipart message, all little-endian:

| frame | bytes       | holds                                                                        |
|-------|-------------|------------------------------------------------------------------------------|
| 0     | 80          | the header, `HEADER` below: magic `CCPS`, version, kind, flags, numbers        |
| 1     | 32 per part | the directory: for each part table key, offset, count, width, kind (`ENTRY`)    |
| 2...  | as said     | one frame per part: raw array bytes, exactly count * width * item size          |

Header fields in order: magic, version, kind, flags, rank, piece, epoch, attempt, pass, batch, request, step,
version of the values, samples, held microseconds, number of parts. A request and its reply carry the same `request`.
`rank` must be the rank that the sender's key belongs to. A push is identified by (rank, step, piece, epoch); `attempt`
says which incarnation of the trainer speaks. The cursor (pass, batch) travels with every push.

Parts: `DENSE` (float32[count] at `offset` of the flattened table), `IDS` (int64[count], strictly ascending) followed
in a push or a reply by `ROWS` (float32[count][width]), `JSON` (bytes). In a pull a DENSE part of count 0 asks for all
that the pserver owns. Nothing is ever unpickled, and nothing is allocated by a size that a message only claims:
a frame is looked at after it arrived whole, and one above `MAX_FRAME_BYTES` is refused before (ZMQ_MAXMSGSIZE).
"""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Union

import numpy as np
import numpy.typing as npt

from clusterctl.runtime.errors import WireError

MAGIC = b"CCPS"
VERSION = 1
HEADER = struct.Struct("<4sBBHIIIIIIQQQQQI4x")
ENTRY = struct.Struct("<QQQIB3x")
MAX_FRAME_BYTES = 64 * 2**20
MAX_PARTS = 65_536
MAX_JSON_BYTES = 1 << 20

# Kinds of a trainer's requests, and of the replies.
HELLO, CREATE, PULL, PUSH, PROBE, SAVE, BYE = 1, 2, 3, 4, 5, 6, 7
OK, ERROR, STATE = 64, 65, 66
REQUESTS = frozenset((HELLO, CREATE, PULL, PUSH, PROBE, SAVE, BYE))
REPLIES = frozenset((OK, ERROR, STATE))

DENSE, IDS, ROWS, JSON = 1, 2, 3, 4

# Flags: of a push, "my last of this pass"; of a save, "at the end of a pass, when all trainers ask"; of a reply to a
# push, "had been applied before".
LAST_OF_PASS, END_OF_PASS, REPEATED = 1, 2, 4

#: The version that a pull names when it takes whatever is newest.
NEWEST = 2**64 - 1

_DTYPES = {DENSE: "<f4", IDS: "<i8", ROWS: "<f4", JSON: "<u1"}

Buffer = Union[bytes, memoryview]
Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Part:
    """One array of a message; `array` has shape (count,), or (count, width) for ROWS."""

    kind: int
    array: Array
    table: int = 0
    offset: int = 0


@dataclass
class Message:
    kind: int
    rank: int = 0
    request: int = 0
    epoch: int = 0
    attempt: int = 1
    piece: int = 0
    pass_: int = 0
    batch: int = 0
    step: int = 0
    version: int = NEWEST
    samples: int = 0
    held_us: int = 0
    flags: int = 0
    parts: list[Part] = field(default_factory=list)

    def json(self) -> dict[str, Any]:
        """The object in the message's JSON part; raises WireError when there is none."""
        for part in self.parts:
            if part.kind == JSON:
                try:
                    value = json.loads(part.array.tobytes())
                except (ValueError, RecursionError) as exc:
                    raise WireError("a message's JSON does not parse") from exc
                if isinstance(value, dict):
                    return value
        raise WireError("a message lacks its JSON object")

    def answer(self, kind: int, **fields: Any) -> Message:
        """A reply to this request: same rank, request, epoch and attempt."""
        plain = Message(kind, self.rank, self.request, self.epoch, self.attempt)
        return replace(plain, **fields)


def json_part(value: dict[str, Any]) -> Part:
    return Part(JSON, np.frombuffer(json.dumps(value).encode(), np.uint8))


def encode(message: Message) -> list[Any]:
    """The frames of `message`; array frames are views of its arrays, which must not change until they are sent."""
    m = message
    header = HEADER.pack(
        MAGIC,
        VERSION,
        m.kind,
        m.flags,
        m.rank,
        m.piece,
        m.epoch,
        m.attempt,
        m.pass_,
        m.batch,
        m.request,
        m.step,
        m.version,
        m.samples,
        m.held_us,
        len(m.parts),
    )
    entries = [ENTRY.pack(p.table, p.offset, len(p.array), _width(p), p.kind) for p in m.parts]
    return [header, b"".join(entries), *(_bytes_of(p) for p in m.parts)]


def decode(frames: Sequence[Buffer]) -> Message:
    """The message in `frames`, its arrays read-only views of them; raises WireError for anything but a message."""
    if len(frames) < 2 or len(frames[0]) != HEADER.size:
        raise WireError("not a message: the header is missing or has another size")
    magic, version, kind, flags, rank, piece, epoch, attempt, pass_, batch, *rest = HEADER.unpack(frames[0])
    request, step, values, samples, held_us, count = rest
    if magic != MAGIC or version != VERSION or kind not in REQUESTS | REPLIES:
        raise WireError(f"not a message of version {VERSION}, or of an unknown kind")
    if count > MAX_PARTS or len(frames) != 2 + count or len(frames[1]) != count * ENTRY.size:
        raise WireError(f"a message says {count} parts and has {len(frames) - 2}")
    parts = [_part(entry, frame) for entry, frame in zip(ENTRY.iter_unpack(frames[1]), frames[2:])]
    return Message(
        kind, rank, request, epoch, attempt, piece, pass_, batch, step, values, samples, held_us, flags, parts
    )


def _width(part: Part) -> int:
    return int(part.array.shape[1]) if part.array.ndim == 2 else 1


def _bytes_of(part: Part) -> memoryview:
    array = np.ascontiguousarray(part.array, _DTYPES[part.kind])
    return array.reshape(-1).view(np.uint8).data if array.size else memoryview(b"")


def _part(entry: Sequence[int], frame: Buffer) -> Part:
    table, offset, count, width, kind = entry
    if kind not in _DTYPES or (width != 1 and kind != ROWS) or width < 1:
        raise WireError(f"a part of kind {kind} and width {width} is not known")
    dtype = np.dtype(_DTYPES[kind])
    if count * width * dtype.itemsize != len(frame) or (kind == JSON and count > MAX_JSON_BYTES):
        raise WireError(f"a part of {count} x {width} values came with {len(frame)} bytes")
    array = np.frombuffer(frame, dtype)
    if not array.flags.aligned:  # libzmq hands out small frames at any offset of its receive buffer
        array = array.copy()
    return Part(kind, array.reshape(count, width) if kind == ROWS else array, table, offset)
