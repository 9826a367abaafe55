"""The client side of the protocol: sends requests to all lanes, handles their replies, counts steps.

The training program uses `Session`, which talks to the pservers through this client. It knows no table names.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Callable, Optional

from clusterctl.common.safe_json import parse
from clusterctl.runtime.arrays import Sketch
from clusterctl.runtime.checkpoint.origin import SavedTables
from clusterctl.runtime.environment import Environment
from clusterctl.runtime.errors import RefusedError
from clusterctl.runtime.modes import WINDOWS, parse_mode
from clusterctl.runtime.trainer.batches import StepContext
from clusterctl.runtime.trainer.link import Link
from clusterctl.runtime.trainer.packing import InitialPiece, LanePush
from clusterctl.runtime.trainer.progress import ProgressReporter
from clusterctl.runtime.trainer.shared_memory import LaneMemory, SlotLease
from clusterctl.runtime.wire import messages as wire

Replies = dict[int, wire.Message]
#: The parts of a pull, and the same with lists of ids in full if they name any by digest.
Ask = tuple[list[wire.Part], Optional[list[wire.Part]]]
#: (lane, piece, pieces, parts) -> the message of a push.
MakePush = Callable[[int, int, int, list[wire.Part]], wire.Message]

#: Pieces of 1 MB that may be in flight on each lane: over the network enough to keep it busy; in shared memory few
#: enough to stay in the processor's cache until they come back.
_PIECES_OUT = 64
_PIECES_SHARED = 8
#: Initial values that may be in flight: bytes, and messages.
_SET_BYTES = 4 * 2**20
_SETS_OUT = 256


@dataclass
class PendingReplies:
    """Requests in flight: the number still unanswered, the replies, and the longest time a pserver held one back."""

    unanswered: int = 0
    held_us: int = 0
    replies: Replies = field(default_factory=dict)
    leases: list[SlotLease] = field(default_factory=list)

    def release(self) -> None:
        """Release the leased memory; call it when every request is answered."""
        for lease in self.leases:
            lease.release()
        self.leases.clear()


class Client:
    """The client of one trainer. `step` counts its pushes (in sync mode: the job's steps); `used` lanes have tables.

    `position` is the value of `ps.cursor` that belongs to its last push, None if there is none; `positions` are those
    of the trainers of an earlier run that had another number of them. `has_state` means that the trainer has state of
    its own, which pushes say, and `had_state` that its newest push before a restart said so; `cut` is the number of the
    newest cut that a reply announced. `saved` are the tables of the checkpoint or the model `load` that pservers start
    from. `window` pushes may be in flight. `refresh(parts)` is called with the new values
    in replies to pushes.
    """

    def __init__(
        self,
        env: Environment,
        link: Link,
        rank: int,
        progress: ProgressReporter,
        refresh: Callable[[list[wire.Part]], None],
        load: str | None = None,
    ) -> None:
        self.rank = rank
        self.is_local = env.local
        self.layout = link.layout
        self.used: list[int] = []
        self._link = link
        self._attempt = env.attempt
        self.trainers = env.trainers
        self._progress = progress
        self._requests = env.attempt << 32  # so that replies to an earlier attempt's requests do not match ours
        self.epoch = 0
        self._pushes: deque[PendingReplies] = deque()
        self.cut = 0  # in sync: the next one that was announced
        self.has_state = self.had_state = False
        self.position: Any = None
        self.positions: list[Any] = []
        self.resized = False
        self._has_tables = False
        self._pieces_out: dict[int, int] = {}
        self._reply_bytes = 0
        self._refresh = refresh
        self._load = load
        self.saved: SavedTables | None = None
        self._gone: dict[int, int] = {}
        self._hello()

    # Requests

    def ask(self, kind: int, lanes: list[int], **fields: Any) -> Replies:
        """Send the same request to several lanes and wait for all replies."""
        return self.exchange({lane: self._message(kind, **fields) for lane in lanes})

    def ask_all(self, kind: int, **fields: Any) -> Replies:
        return self.ask(kind, list(range(self.layout.lanes)), **fields)

    def exchange(self, requests: Mapping[int, wire.Message]) -> Replies:
        pending = PendingReplies()
        for lane, message in requests.items():
            self._post(pending, lane, message)
        self.wait_for(pending)
        return pending.replies

    def pull(
        self,
        pending: PendingReplies,
        asks: Mapping[int, Ask],
        on_reply: Callable[[int, wire.Message], None],
    ) -> None:
        """Request values: parts by lane, and the parts in full where they name lists of ids by digest.

        `on_reply(lane, reply)` is called for each reply. In sync mode the values are those of the current step, after
        all pushes sent before; lanes reply when they have them.
        """
        version = self.step if self.mode.name == "sync" else wire.NEWEST

        def taken(lane: int) -> Callable[[wire.Message], None]:
            def take(reply: wire.Message) -> None:
                self._record(pending, lane, reply)
                on_reply(lane, reply)
                if pending.unanswered == 0:
                    pending.release()

            return take

        for lane, (parts, full) in asks.items():
            message = self._message(wire.PULL, step=self.step, version=version, parts=parts)
            again = None if full is None else self._message(wire.PULL, step=self.step, version=version, parts=full)
            pending.unanswered += 1
            self._link.post(lane, message, taken(lane), again)

    def create(self, tables: Mapping[int, list[wire.Part]], place: Mapping[str, int]) -> dict[int, dict[str, Any]]:
        """Declare tables to lanes, at the pass and batch of `place`; return what the lanes reply."""
        at = {**place, "step": self.step}
        replies = self.exchange({lane: self._message(wire.CREATE, **at, parts=parts) for lane, parts in tables.items()})
        return {lane: reply.json() if reply.parts else {} for lane, reply in replies.items()}

    def set_values(self, rounds: Iterable[Mapping[int, InitialPiece]], flags: int = 0) -> None:
        """Send initial values to lanes, some pieces at a time; with `wire.ASSIGNS` those for the next step."""
        pending, size = PendingReplies(), 0
        for pieces in rounds:
            for lane, (piece, count, parts) in pieces.items():
                about = {"step": self.step, "piece": piece, "pieces": count, "flags": flags}
                self._post(pending, lane, self._message(wire.SET, **about, parts=parts))
                size += sum(part.array.nbytes for part in parts)
            if size >= _SET_BYTES or pending.unanswered >= _SETS_OUT:
                self.wait_for(pending)
                pending, size = PendingReplies(), 0
        self.wait_for(pending)

    def wait_for(self, pending: PendingReplies) -> None:
        if pending.unanswered:
            self._wait(lambda: pending.unanswered == 0, pending)

    # Pushes

    def push(
        self,
        parts: Mapping[int, LanePush],
        context: StepContext,
        samples: int,
        assigned: Mapping[int, Sketch] | None = None,
    ) -> None:
        """Send a push to all lanes in use, and wait until its last pieces are sent; see `settle`.

        `assigned` are the values that the program has given since the last push, by key of the table.
        """
        make, pending = self._push_maker(context, samples), PendingReplies()
        changes = context.position is not None or self.position is not None
        cursor = {"cursor": context.position} if changes else {}
        if self.has_state:
            cursor["state"] = True
        self.position = context.position
        pieces: dict[int, list[wire.Part]] = {}
        for lane in self.used:
            out = parts.get(lane) or LanePush()
            if self.memory.clients:
                self.memory.put_rows(pending.leases, lane, out)
            count = 1 + len(out.pieces)
            facts = {**cursor, "rates": out.rates} if out.rates else cursor
            facts = {**facts, "assigned": assigned} if assigned and lane == 0 else facts
            last = [wire.json_part(facts)] if facts else []
            message = make(lane, 0, count, [*out.opening, *last] if last else out.opening)
            full = None if out.full is None else make(lane, 0, count, [*out.full, *last])
            pending.unanswered += 1
            self._link.post(lane, message, partial(self._take_push, pending, lane), full)
            if out.pieces:
                pieces[lane] = out.pieces
        if pieces:
            self._send_pieces(pending, make, pieces)
        self._pushes.append(pending)
        self.step += 1

    def _push_maker(self, context: StepContext, samples: int) -> MakePush:
        """Return the function that makes the messages of one push; their common fields are looked up once."""
        rank, epoch, attempt, step = self.rank, self.epoch, self._attempt, self.step
        pass_, batch = context.pass_, context.batch
        cut = self.cut if self.mode.name == "sync" and self.cut > step else 0
        flags = (wire.LAST_OF_PASS if context.last else 0) | (wire.SHARDED if context.sharded else 0)

        def make(lane: int, piece: int, pieces: int, parts: list[wire.Part]) -> wire.Message:
            self._requests = number = self._requests + 1
            about = (piece, pass_, batch, step, self._versions[lane], samples, cut, 0, flags, pieces)
            return wire.Message(wire.PUSH, rank, number, epoch, attempt, *about, parts)

        return make

    def _send_pieces(self, pending: PendingReplies, make: MakePush, pieces: dict[int, list[wire.Part]]) -> None:
        """Send each lane its pieces, a bounded number at a time.

        All trainers send a lane's pieces in the same order, so they cannot deadlock in sync mode.
        """
        sent = dict.fromkeys(pieces, 0)
        while sent:
            for lane in list(sent):
                while lane in sent and self._has_room(lane):
                    number = sent[lane]
                    self._post_piece(pending, make, lane, pieces[lane], number)
                    sent[lane] += 1
                    if sent[lane] == len(pieces[lane]):
                        del sent[lane]
            if sent:
                self._wait(lambda: any(map(self._has_room, sent)), pending)

    def _has_room(self, lane: int) -> bool:
        return self._pieces_out.get(lane, 0) < (_PIECES_SHARED if lane in self.memory.clients else _PIECES_OUT)

    def _post_piece(
        self, pending: PendingReplies, make: MakePush, lane: int, pieces: list[wire.Part], number: int
    ) -> None:
        part = pieces[number]
        lease = self.memory.lease_for(lane, part.array.nbytes)
        message = make(lane, number + 1, 1 + len(pieces), [part if lease is None else lease.put(part)])

        def take(reply: wire.Message) -> None:
            self._record(pending, lane, reply)
            self._pieces_out[lane] -= 1
            if lease is not None:
                lease.release()
            self._refresh(reply.parts)

        pending.unanswered += 1
        self._pieces_out[lane] = self._pieces_out.get(lane, 0) + 1
        self._link.post(lane, message, take)

    def settle(self, in_flight: int = 0) -> None:
        """Wait until at most `in_flight` pushes are unanswered."""
        while self._pushes and (self._pushes[0].unanswered == 0 or len(self._pushes) > in_flight):
            self.wait_for(self._pushes[0])
            pending = self._pushes.popleft()
            if pending.leases:
                pending.release()

    @property
    def passes_done(self) -> int:
        """Passes that all trainers have ended, as far as this trainer knows."""
        return min(self._passes.values())

    # Start and end

    def _hello(self) -> None:
        first = [pserver * self.layout.per_pserver for pserver in range(self.layout.pservers)]
        about = {"parts": [wire.json_part({"trainers": self.trainers, "declares": True, "origin": self._load or ""})]}
        replies = self.ask(wire.HELLO, first, **about)
        facts = {lane: reply.json() for lane, reply in replies.items()}
        more = [part for part in replies[0].parts[1:] if part.kind != wire.BYTES]
        self.positions = [wire.parsed(part)["position"] for part in more]
        self.saved = _saved_tables(replies[0].parts)
        for lane, own in list(facts.items()):
            self._check(lane, own)
            for number, port in enumerate(own.get("ports", [])[1:], 1):
                self._link.open(lane + number, int(port))
        others = [lane for lane in range(self.layout.lanes) if lane not in first]
        facts.update({lane: reply.json() for lane, reply in self.ask(wire.HELLO, others, **about).items()})
        self.epoch = next(iter(replies.values())).epoch
        self._continue_from(facts, first)
        self.memory = LaneMemory(link=self._link, facts=facts, rank=self.rank, half=self.half)

    def _continue_from(self, facts: dict[int, dict[str, Any]], first: list[int]) -> None:
        """Continue where the lanes are: take over their settings, and this trainer's step and position in the data."""
        self.used = first
        used = {lane: own for lane, own in facts.items() if own["used"]}
        known = used or {lane: own for lane, own in facts.items() if own["restored"] or lane in first}
        self.left = any(own["left"] for own in facts.values())
        self.resized = bool(facts[0].get("resized"))
        self._gone = dict(facts[0]["gone"])
        earliest = min(known.values(), key=lambda own: int(own["step"]))
        self.mode, self.seed = parse_mode(str(earliest["mode"])), int(earliest["seed"])
        self.window = WINDOWS[self.mode.name]
        self.half, self.key_cache = bool(earliest["half"]), bool(earliest["key_cache"])
        self.step, self.next_pass, self.batch = (int(earliest[name]) for name in ("step", "pass", "batch"))
        self._passes = {lane: int(own["passes"]) for lane, own in known.items()}
        self._versions = {lane: int(own["version"]) for lane, own in facts.items()}
        self.takes_rounds = all(own.get("rounds") is True for own in facts.values())
        self.cut = max(int(own["cut"]) for own in facts.values())
        self.position = earliest.get("position")
        self.had_state = any(own.get("state") for own in facts.values())

    def end_pass(self, tag: str, *, repeated: bool = False) -> None:
        """Request the save at the end of a pass; the replies name the trainers that are gone for good.

        All lanes get it: another trainer may have made a table on a lane that this one does not use yet. It is
        `repeated` if an earlier attempt may have requested it.
        """
        flags = wire.END_OF_PASS | (wire.REPEATED if repeated else 0)
        first = self.ask_all(wire.SAVE, flags=flags, parts=[wire.json_part({"tag": tag})])[0]
        if first.parts:
            self._gone = dict(first.json()["gone"])

    def share_of(self, pass_: int) -> tuple[int, int]:
        """Return (every, offset): this trainer's share of the batches that all trainers read."""
        active = [rank for rank in range(self.trainers) if self._gone.get(rank, pass_ + 1) > pass_]
        return len(active), active.index(self.rank)

    @property
    def is_lowest(self) -> bool:
        """True for the lowest rank that the run still has."""
        return all(rank in self._gone for rank in range(self.rank))

    def send_buffers(self, data: bytes, step: int) -> None:
        """Send the buffers of a model, as they are after so many pushes, for models that are saved then."""
        self.ask(wire.BUFFERS, [0], step=step, parts=wire.bytes_parts(data))

    def use(self, lanes: list[int], reply_bytes: int = 0) -> None:
        """Take lanes into use for a new table. Before the first table, one lane of each pserver is in use.

        Lane 0 is always in use: it announces checkpoints. `reply_bytes` is the size that the table adds to replies.
        """
        passes = self.passes_done
        self.used = sorted({0, *(self.used if self._has_tables else ()), *lanes})
        self._has_tables = True
        self._reply_bytes += reply_bytes
        self._passes = {lane: self._passes.get(lane, passes) for lane in self.used}

    def _check(self, lane: int, facts: Mapping[str, Any]) -> None:
        pserver, here = lane // self.layout.per_pserver, self.layout
        if (facts["pserver"], facts["pservers"]) != (pserver, here.pservers):
            raise RefusedError(
                f"pserver {pserver} of {here.pservers} reported that it is {facts['pserver']} of {facts['pservers']}"
            )
        if facts["lanes"] != [here.dense, here.sparse]:
            raise RefusedError(f"pserver {pserver} has {facts['lanes']} lanes, not {[here.dense, here.sparse]}")

    def close(self) -> None:
        self.memory.close()
        self._link.close()

    # Helpers

    def _message(self, kind: int, **fields: Any) -> wire.Message:
        self._requests += 1
        return wire.Message(kind, self.rank, self._requests, self.epoch, self._attempt, **fields)

    def _post(self, pending: PendingReplies, lane: int, message: wire.Message) -> None:
        def take(reply: wire.Message) -> None:
            self._record(pending, lane, reply)
            pending.replies[lane] = reply

        pending.unanswered += 1
        self._link.post(lane, message, take)

    def _take_push(self, pending: PendingReplies, lane: int, reply: wire.Message) -> None:
        """Take the reply to the opening of a push."""
        self._record(pending, lane, reply)
        if reply.parts:
            self._refresh(reply.parts)
        self._passes[lane] = reply.pass_

    def _record(self, pending: PendingReplies, lane: int, reply: wire.Message) -> None:
        pending.unanswered -= 1
        pending.held_us = max(pending.held_us, reply.held_us)
        if reply.kind == wire.OK and reply.version != wire.NEWEST:
            self._versions[lane] = max(self._versions[lane], reply.version)
            self.cut = max(self.cut, reply.cut)

    def _wait(self, done: Callable[[], bool], pending: PendingReplies) -> None:
        began = time.monotonic()
        self._link.wait(done, self._reply_bytes)
        self._progress.blocked(time.monotonic() - began, pending.held_us / 1e6)


def _saved_tables(parts: Iterable[wire.Part]) -> SavedTables | None:
    """Return the tables of the origin in the parts of a reply; None if the run has none, or the pserver is older."""
    data = b"".join(part.array.tobytes() for part in parts if part.kind == wire.BYTES)
    return SavedTables(**parse(data)) if data else None
