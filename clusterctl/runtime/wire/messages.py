"""The messages between trainers and pservers, and their frames. The only module that knows the format.

A message is a list of frames, all little-endian: one ZeroMQ multipart message, or what `stream.framed` makes of it. Its
first frame holds, one after the other,

| bytes       | contents                                                                         |
|-------------|----------------------------------------------------------------------------------|
| 88          | the header, `HEADER` below: magic `CCPS`, version, kind, flags, numbers          |
| 40 per part | the directory: table key, offset, count, position, width, kind, place (`ENTRY`)  |
| the rest    | the arrays whose place is `INLINE`, each padded to a multiple of 8 bytes         |

and each array whose place is `FRAME` follows as a separate frame: exactly count * width * item size raw bytes. The
bytes of an array whose place is `SHARED` are at `position` in the memory that the two processes share.

Header fields in order: magic, version, kind, flags, rank, piece, epoch, attempt, pass, batch, request, step,
version of the values, samples, cut, held microseconds, parts, pieces. A request and its reply carry the same
`request`. `rank` must be the rank that the sender's key belongs to. A push is identified by (rank, step, piece, epoch);
`attempt` is the number of starts of the trainer. Piece 0 opens a push: it has the cursor (pass, batch), the samples,
`LATER` parts for the tables whose gradients follow in pieces 1 to `pieces` - 1, and last, if the reader has set
`ps.cursor`, the push has learning rates or the trainer has a state of its own, a `JSON` part `{"cursor": VALUE,
"rates": {"TABLE KEY": RATE}, "state": true, "assigned": {"TABLE KEY": SKETCH}}`, each only if there is one. Lane 0 gets
`assigned`, see `arrays.sketch`, of the values that the program has given to tables since its last push.
The reply to a `HELLO` says `"state": true` if the trainer's newest push did: it goes on from that state.

A `CREATE` declares a round of tables: a JSON part `{"round": true, "cursor": VALUE, "others": {NAME: KIND}}`, and one
for each table that the lane has (`TableSpec.to_json`). `others`, for lane 0, are the tables of the round that it does
not have: it knows what each trainer has declared. The reply has the numbers of the tables in the round that have no
values yet, `unset`. A trainer that says `"declares": true` in its `HELLO` does so for all its tables; a pserver that
takes rounds says `"rounds": true` in the reply. Older versions have one JSON part, with a cursor and the table itself,
and a boolean in the reply. Once trainers have declared different tables, every request is answered with an error that
says `"differ": true`.

While a lane has no values of a table, whose initial values come from trainer 0, its reply to a `CREATE` says that it is
unset. Then trainer 0 sends all that the lane owns in `SET` messages, of which this is `piece` of `pieces`:
each has one `DENSE` part, or `IDS` and `ROWS`. Once the lane has values it ignores them, but answers. With the flag
`ASSIGNS`, in sync mode, they are values of a dense table that the next step, number `step`, begins with.

A `BUFFERS` message to lane 0 has the buffers of a torch model after `step` pushes, for models that are saved then: a
safetensors file in one or more `BYTES` parts.

Parts: `DENSE` (float32[count] at `offset` of the flattened table), `IDS` (int64[count], strictly ascending), `SAME`
(the digest of a list of ids that the pserver has cached), each followed in a push or a reply by `ROWS`
(float32[count][width]); `DENSE16` and `ROWS16` are the same in float16; `LATER` (no bytes; `offset` pieces follow),
`JSON` and `BYTES` (bytes). In a pull a DENSE part of count 0 requests all that the lane owns.

The gradients of a table with `wire` come as `CHANGE` (bytes, in the format of `table.quantization`, from the element at
`offset`). So do its new values in a reply, as what is to be added to the values before the step; a reply with the flag
`REPEATED`, or to a pull, has `DENSE` instead, and so has one to a trainer that shares memory.

Nothing is unpickled, and no memory is allocated for a size that a message merely claims: a frame is read after it has
arrived whole, and libzmq refuses frames above `MAX_FRAME_BYTES` (ZMQ_MAXMSGSIZE).
"""

from __future__ import annotations

import functools
import json
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Callable, NamedTuple, Optional, Union

import numpy as np

from clusterctl.common.safe_json import parse
from clusterctl.runtime.arrays import Array
from clusterctl.runtime.errors import WireError

MAGIC = b"CCPS"
VERSION = 2
HEADER = struct.Struct("<4sBBHIIIIIIQQQQQIII4x")
ENTRY = struct.Struct("<QQQQIBB2x")
MAX_FRAME_BYTES = 64 * 2**20
BYTES_OF_A_PART = 16 * 2**20
MAX_PARTS = 65_536
MAX_JSON_BYTES = 1 << 20
#: The longest value of `ps.cursor`, as JSON.
MAX_POSITION_BYTES = 4_096
#: Longer arrays get a separate frame; a frame costs more than copying this much.
INLINE_BYTES = 16_384
#: Directories that are kept once they are read and checked, as most messages repeat one; and the most parts of these.
_DIRECTORIES_KEPT = 256
_KEPT_PARTS = 64

# Kinds of a trainer's requests, and of the replies.
HELLO, CREATE, PULL, PUSH, PROBE, SAVE, BYE, SET, BUFFERS = 1, 2, 3, 4, 5, 6, 7, 9, 10
OK, ERROR, STATE = 64, 65, 66
REQUESTS = frozenset((HELLO, CREATE, PULL, PUSH, PROBE, SAVE, BYE, SET, BUFFERS))
REPLIES = frozenset((OK, ERROR, STATE))
_KINDS = REQUESTS | REPLIES

DENSE, IDS, ROWS, JSON, LATER, DENSE16, ROWS16, SAME, BYTES, CHANGE = 1, 2, 3, 4, 5, 6, 7, 8, 9, 10
INLINE, FRAME, SHARED = 0, 1, 2

# Flags. LAST_OF_PASS: the trainer's last push of this pass. END_OF_PASS: a save at the end of a pass, when all trainers
# request it. REPEATED: a reply to a push that was applied before, or a save that an earlier attempt may have requested.
# SHARDED: a push of a share of the batches that all trainers read. ASSIGNS: a SET of values for the next step.
LAST_OF_PASS, END_OF_PASS, REPEATED, SHARDED, ASSIGNS = 1, 2, 4, 8, 16

#: The version of a pull that takes the newest values.
NEWEST = 2**64 - 1

_DTYPES: dict[int, np.dtype[Any]] = {
    DENSE: np.dtype("<f4"),
    IDS: np.dtype("<i8"),
    ROWS: np.dtype("<f4"),
    JSON: np.dtype("<u1"),
    LATER: np.dtype("<u1"),
    DENSE16: np.dtype("<f2"),
    ROWS16: np.dtype("<f2"),
    SAME: np.dtype("<u1"),
    BYTES: np.dtype("<u1"),
    CHANGE: np.dtype("<u1"),
}
_WIDE = frozenset((ROWS, ROWS16))
_NOTHING = np.empty(0, np.uint8)
#: The kinds that may be in shared memory. Never ids, which could change between their check and their use.
_SHAREABLE = frozenset((DENSE, ROWS, DENSE16, ROWS16, CHANGE))

Buffer = Union[bytes, memoryview]
#: (table, position, bytes) -> those bytes of shared memory; raises WireError if they do not exist.
Shared = Callable[[int, int, int], memoryview]


class Part(NamedTuple):
    """One array of a message; `array` has shape (count,), or (count, width) for rows.

    `position` is where the receiver finds the bytes in shared memory, None if they are in the message. For ids in a
    pull it is where the pserver may put the rows.
    """

    kind: int
    array: Array
    table: int = 0
    offset: int = 0
    position: int | None = None


#: Makes a part of a tuple of its five fields, at half the cost.
as_part = functools.partial(tuple.__new__, Part)


class Parts(list[Part]):
    """The parts of a received message, whose `directory` is the same object for the same bytes; or those of several
    messages to be sent, which are encoded once.
    """

    directory: Directory | None = None
    encoded: tuple[bytes, list[Any]] | None = None


class Directory:
    """A checked directory: for each part its kind, table, offset, position, dtype, place, number of values, shape (None
    if it is flat), bytes, and where the bytes are if they are inline; the end of the first frame; the number of frames.
    """

    __slots__ = ("end", "entries", "frames")

    def __init__(self, entries: list[_Entry], end: int, frames: int) -> None:
        self.entries = entries
        self.end = end
        self.frames = frames


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
    cut: int = 0
    held_us: int = 0
    flags: int = 0
    pieces: int = 1
    parts: list[Part] = field(default_factory=list)

    def json(self) -> dict[str, Any]:
        """Return the object in the message's JSON part. Raises WireError if there is none."""
        for part in self.parts:
            if part.kind == JSON:
                return json_of(part)
        raise WireError("a message lacks its JSON object")

    def answer(self, kind: int, **fields: Any) -> Message:
        """Return a reply to this request: same rank, request, epoch, attempt, step and piece."""
        known = {"epoch": self.epoch, "attempt": self.attempt, "piece": self.piece, "step": self.step}
        return Message(kind, self.rank, self.request, **{**known, **fields})


def parsed(part: Part) -> Any:
    """Return the value of a part with JSON. Raises WireError."""
    try:
        return parse(part.array.tobytes())
    except ValueError as exc:
        raise WireError("a message's JSON does not parse") from exc


def json_of(part: Part) -> dict[str, Any]:
    """Return the object in a JSON part. Raises WireError if there is none."""
    value = parsed(part) if part.kind == JSON else None
    if not isinstance(value, dict):
        raise WireError("a message lacks its JSON object")
    return value


def json_part(value: dict[str, Any]) -> Part:
    return Part(JSON, np.frombuffer(json.dumps(value).encode(), np.uint8))


def bytes_parts(data: bytes) -> list[Part]:
    """Return parts that together are these bytes."""
    array = np.frombuffer(data, np.uint8)
    return [Part(BYTES, array[at : at + BYTES_OF_A_PART]) for at in range(0, len(array), BYTES_OF_A_PART)]


def later_part(table: int, pieces: int) -> Part:
    """Return a part that announces that the gradient of `table` follows in `pieces` pieces."""
    return Part(LATER, _NOTHING, table, pieces)


def encode(message: Message) -> list[Any]:
    """Return the frames of `message`; long arrays are sent as views, and must not change until they are sent."""
    m = message
    about = (m.rank, m.piece, m.epoch, m.attempt, m.pass_, m.batch, m.request, m.step, m.version, m.samples, m.cut)
    head = HEADER.pack(MAGIC, VERSION, m.kind, m.flags, *about, m.held_us, len(m.parts), m.pieces)
    if not m.parts:
        return [head]
    if not isinstance(m.parts, Parts):
        body, frames = _encoded(m.parts)
    else:
        m.parts.encoded = body, frames = m.parts.encoded or _encoded(m.parts)
    return [head + body, *frames]


def _encoded(parts: Sequence[Part]) -> tuple[bytes, list[Any]]:
    """Return the directory with the inline arrays, and the other frames."""
    directory: list[bytes] = []
    inline: list[bytes] = []
    frames: list[Any] = []
    for kind, given, table, offset, position in parts:
        dtype = _DTYPES[kind]
        array = given if given.dtype is dtype else np.asarray(given, dtype)
        size, width = array.nbytes, array.shape[1] if array.ndim == 2 else 1
        place = SHARED if position is not None and kind in _SHAREABLE else INLINE if size <= INLINE_BYTES else FRAME
        directory.append(ENTRY.pack(table, offset, len(array), position or 0, width, kind, place))
        if place == INLINE:
            inline.append(array.tobytes())
            if size % 8:
                inline.append(bytes(-size % 8))
        elif place == FRAME:
            frames.append(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return b"".join(directory + inline), frames


def decode(frames: Sequence[Buffer], shared: Shared | None = None) -> Message:
    """Return the message in `frames`, its arrays read-only views of them. Raises WireError for a malformed message.

    `shared` finds the arrays that are in shared memory; without it a message with such arrays is refused.
    """
    first = frames[0] if frames else b""
    if len(first) < HEADER.size:
        raise WireError("not a message: the header is missing or has another size")
    magic, version, kind, flags, rank, piece, epoch, attempt, pass_, batch, *rest = HEADER.unpack_from(first)
    request, step, values, samples, cut, held_us, count, pieces = rest
    if magic != MAGIC or version != VERSION or kind not in _KINDS:
        raise WireError(f"not a message of version {VERSION}, or of an unknown kind")
    if count > MAX_PARTS or HEADER.size + count * ENTRY.size > len(first):
        raise WireError(f"a message claims {count} parts, its directory is shorter")
    parts = _parts(first, count, frames, shared) if count else _no_more(first, frames)
    about = (rank, request, epoch, attempt, piece, pass_, batch, step, values, samples, cut)
    return Message(kind, *about, held_us, flags, pieces, parts)


def rank_of(first: Buffer) -> int:
    """Return the rank that a message claims, -1 if the message is too short."""
    return int(HEADER.unpack_from(first)[4]) if len(first) >= HEADER.size else -1


def _no_more(first: Buffer, frames: Sequence[Buffer]) -> list[Part]:
    if len(first) != HEADER.size or len(frames) != 1:
        raise WireError("a message without parts is longer than its header")
    return []


def _dtype(kind: int, items: int, width: int, place: int) -> np.dtype[Any]:
    dtype = _DTYPES.get(kind)
    if dtype is None or width < 1 or (width != 1 and kind not in _WIDE) or place > SHARED:
        raise WireError(f"a part has an unknown kind {kind}, width {width} or place {place}")
    if kind == JSON and items > MAX_JSON_BYTES:
        raise WireError(f"a part of {items} bytes of JSON is too long")
    return dtype


_Entry = tuple[int, int, int, Optional[int], "np.dtype[Any]", int, int, Optional[tuple[int, int]], int, int]


def _read(entries: bytes) -> Directory:
    """Return the directory in these bytes. Raises WireError for one that no message can have."""
    read: list[_Entry] = []
    at, frames = HEADER.size + len(entries), 1
    for table, offset, items, position, width, kind, place in ENTRY.iter_unpack(entries):
        dtype = _dtype(kind, items, width, place)
        values = items * width
        size = values * dtype.itemsize
        if place == INLINE and size > INLINE_BYTES:
            raise WireError(f"a part of {items} x {width} values is incomplete")
        if place == SHARED and kind not in _SHAREABLE:
            raise WireError("a part claims to be in shared memory, where it cannot be")
        shape = (items, width) if kind in _WIDE else None
        read.append((kind, table, offset, position or None, dtype, place, values, shape, size, at))
        at += size + -size % 8 if place == INLINE else 0
        frames += place == FRAME
    return Directory(read, at, frames)


#: The same for a directory that is likely to come again. It depends on the bytes alone, so none is accepted that would
#: not be accepted anew.
_recalled = functools.lru_cache(_DIRECTORIES_KEPT)(_read)


def _parts(first: Buffer, count: int, frames: Sequence[Buffer], shared: Shared | None) -> Parts:
    entries = bytes(first[HEADER.size : HEADER.size + count * ENTRY.size])
    directory = _recalled(entries) if count <= _KEPT_PARTS else _read(entries)
    if directory.end != len(first) or directory.frames != len(frames):
        raise WireError("a message is shorter or longer than its directory")
    parts, used = Parts(), 1
    parts.directory = directory
    for kind, table, offset, position, dtype, place, values, shape, size, at in directory.entries:
        if place == INLINE:
            array = np.frombuffer(first, dtype, values, at) if size else np.empty(0, dtype)
        elif place == FRAME:
            if len(frames[used]) != size:
                raise WireError(f"the frame of a part of {values} values has another size")
            array = np.frombuffer(frames[used], dtype)
            used += 1
        elif shared is None:
            raise WireError("a part claims to be in shared memory, where it cannot be")
        else:
            array = np.frombuffer(shared(table, position or 0, size), dtype)
        if not array.flags.aligned:  # libzmq returns small frames at any offset of its receive buffer
            array = array.copy()
        if shape is not None:
            array = array.reshape(shape)
        parts.append(as_part((kind, array, table, offset, position)))
    return parts
