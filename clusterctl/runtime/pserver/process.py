"""The generic pserver process: `python -m clusterctl.runtime.pserver`, configured by its environment alone.

It binds a port for each of its lanes, sends `ready`, serves until the supervisor sends `finish`, and exits with 0. On
an error it prints one line to standard error and exits with 1. On SIGTERM, or if the supervisor is gone, it exits
at once.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import zmq

from clusterctl.runtime.checkpoint.remote import open_saved_checkpoint, open_saved_model, run_peers
from clusterctl.runtime.checkpoint.writer import Save, write_save
from clusterctl.runtime.environment import Environment
from clusterctl.runtime.errors import TableError
from clusterctl.runtime.modes import EACH_PASS, parse_mode
from clusterctl.runtime.pserver.copying import LaneCopies
from clusterctl.runtime.pserver.core import ServerCore
from clusterctl.runtime.pserver.cut_part import CutPart
from clusterctl.runtime.pserver.lane_state import CutOutput, LaneState, Output
from clusterctl.runtime.pserver.lanes import Lane, Server
from clusterctl.runtime.pserver.sync import SyncUpdates
from clusterctl.runtime.shm import region
from clusterctl.runtime.shm.server import ShmServer
from clusterctl.runtime.store.factory import CheckpointSource, ModelSource
from clusterctl.runtime.store.sparse import SparseTable
from clusterctl.runtime.stream import sealed as sealed_streams
from clusterctl.runtime.stream.server import StreamServer
from clusterctl.runtime.stream.tcp import open_listener
from clusterctl.runtime.supervisor_socket import Command, SupervisorSocket, print_line
from clusterctl.runtime.table.sharding import layout_of
from clusterctl.runtime.wire.sockets import CurveAuthenticator, bind_first_free, open_context, open_router

_AGAIN_S = 1.1  # after a report of a wait: lanes may be quiet once it is over


def serve(env: Environment) -> None:
    """Serve one pserver of a run, from bind to `finish`."""
    supervisor: list[SupervisorSocket] = []
    pserver = PServer(env, lambda event, facts: supervisor[0].send(event, **facts))
    try:
        supervisor.append(SupervisorSocket(env.control_fd, pserver.handle_command))
        supervisor[0].register_stack_dump()
        supervisor[0].send("ready", ports=pserver.ports)
        print_line(f"pserver {env.rank}: ready on port {', '.join(map(str, pserver.ports))}")
        pserver.run()
    except TableError as error:  # found when the last trainer had ended
        supervisor[0].send("tables_differ", message=str(error))
        raise
    finally:
        pserver.report()
        pserver.close()


class PServer:
    """A pserver of the run that `env` describes, with its sockets bound.

    `send(event, facts)` is called with `saved` files and their receipts, about once a second with `step` counts, and
    with `cut` reports to the lead.
    """

    def __init__(self, env: Environment, send: Callable[[str, dict[str, Any]], None]) -> None:
        self._env = env
        self._send = send
        self._reporting = threading.Lock()
        self._reported_s = self._applied_s = self._sent_s = 0.0
        self._finishing = False
        self._tensors_begun = 0  # of saves
        self.layout = layout_of(env.spec.ports, env.spec.training.pservers)
        self._context = open_context(self.layout.per_pserver)
        self._keys = env.keys() if env.secure else None
        self._authenticator = CurveAuthenticator(self._context, self._keys["allow"]) if self._keys is not None else None
        self.ports: list[int] = []
        shares = env.spec.shm != "off" and region.is_available()
        self._shm = ShmServer() if shares else None
        self._peers = run_peers(env)
        self._models: dict[str, ModelSource] = {}
        self._opening = threading.Lock()
        restored = open_saved_checkpoint(env, self._peers)
        first = env.rank * self.layout.per_pserver
        lanes = [self._open(first + k, restored) for k in range(self.layout.per_pserver)]
        for lane in lanes:
            lane.core.greeting.update(ports=self.ports)
        self.server = Server(lanes, self._write)
        self.cuts = CutPart(self.server, lambda phase, facts: self._send("cut", {"phase": phase, **facts}))

    def run(self) -> None:
        self.server.run()

    def finish(self) -> None:
        self._finishing = True
        self.server.finish()

    def handle_command(self, command: Command) -> None:
        """Handle a command of the supervisor; called in the thread of the supervisor socket."""
        name = command.get("cmd")
        if name == "finish":
            self.finish()
        elif name == "ping":
            self._send_pong()
        elif name == "epoch":
            self._submit(lambda core: core.begin_epoch(int(command["epoch"])))
            self.cuts.reset()
        elif name == "keys" and self._authenticator is not None:
            self._authenticator.allow(command["allow"])
        elif name == "cut" and not self._finishing:
            self.cuts.order(command["order"], command["cut"], command)
        elif name == "lost":
            self._submit(lambda core: self._drop(core, command["ranks"]))
        elif name == "left":
            self._submit(lambda core: core.leave(command["ranks"]))

    def _send_pong(self) -> None:
        """Send a pong when every lane has responded; at once if the lanes are finishing."""
        answers, lanes = itertools.count(1), len(self.server.lanes)

        def answer(core: ServerCore) -> list[Output]:
            if next(answers) == lanes:
                self._send("pong", self._progress())
            return []

        if self._finishing:
            self._send("pong", self._progress())
        else:
            for lane in self.server.lanes:
                lane.submit(answer, at_any_time=True)

    def _progress(self) -> dict[str, list[int]]:
        """Return the facts of a pong: while a save is written or files are read, numbers that change as that advances.

        Lanes go on meanwhile: `list` copies atomically.
        """
        readings = [one for lane in self.server.lanes for one in list(lane.core.readings.values()) if not one.is_done]
        if not readings and not self.server.is_writing:
            return {}
        return {"progress": [self._tensors_begun, *(one.progress() for one in readings)]}

    def _count_tensor(self) -> None:
        self._tensors_begun += 1

    def _drop(self, core: ServerCore, ranks: list[int]) -> list[Output]:
        for rank in ranks if core.state.lane == 0 else ():
            if rank in core.trainers.by_rank and not core.trainers[rank].left:
                text = core.trainers[rank].describe_loss(rank, core.trainers.most_passes)
                print_line(text)
                self._send("log", {"level": "warning", "message": text})
        return core.drop(ranks)

    def _submit(self, task: Callable[[ServerCore], list[Output]]) -> None:
        for lane in self.server.lanes:
            lane.submit(task)

    def close(self) -> None:
        self.cuts.reset()
        closed = self.server.close()
        self._peers.close()
        if self._shm is not None:
            self._shm.close()
        _clear_half_written(self._env)
        if closed:
            self._context.term()

    def report(self) -> None:
        """Send the last counts, and print a summary."""
        self._reported_s = 0.0
        self._report_step()
        staleness = self._staleness()
        refused = sum(sum(lane.refused.values()) for lane in self.server.lanes)
        if staleness:
            counts = ", ".join(f"{age}: {count}" for age, count in sorted(staleness.items()))
            print_line(f"pserver {self._env.rank}: staleness of {sum(staleness.values())} pushes: {counts}")
        if self._lost():
            print_line(f"pserver {self._env.rank}: {self._lost()} pushes were lost with the pserver before this one")
        if refused:
            print_line(f"pserver {self._env.rank}: refused {refused} messages")

    def _staleness(self) -> Counter[int]:
        """Return the number of pushes by staleness. Other threads keep counting; `dict` copies atomically."""
        return sum((Counter(dict(lane.core.policy.staleness)) for lane in self.server.lanes), Counter())

    def _lost(self) -> int:
        return max(lane.core.policy.lost for lane in self.server.lanes)

    def _report_step(self) -> None:
        with self._reporting:
            now = time.monotonic()
            if now - self._reported_s < 1.0:
                return  # another lane did
            self._reported_s = now
            wait = self._long_wait()
            self._send("step", {**self._counts(), **self._times(), **wait})
        if wait and not self._finishing:
            again = threading.Timer(_AGAIN_S, self._report_step)
            again.daemon = True
            again.start()

    def _long_wait(self) -> dict[str, Any]:
        """Return which trainers the others wait for; lane 0, which gets all pushes, knows it in sync mode."""
        first = self.server.lanes[0].core
        return first.policy.long_wait() if first.state.lane == 0 and isinstance(first.policy, SyncUpdates) else {}

    def _counts(self) -> dict[str, Any]:
        tables: dict[str, Counter[str]] = {}
        for lane in self.server.lanes:
            for table in list(lane.core.tables.values()):
                if isinstance(table, SparseTable):
                    tables.setdefault(table.spec.name, Counter()).update(table.counters())
        facts: dict[str, Any] = {"tables": [{"name": name, **counts} for name, counts in tables.items()]}
        facts["staleness"] = sorted(self._staleness().items())
        facts["lost"] = self._lost()
        return facts

    def _times(self) -> dict[str, float]:
        """Return the seconds that all lanes together spent applying updates and sending replies since the last call."""
        before = self._applied_s, self._sent_s
        self._applied_s = sum(lane.core.policy.applied_s for lane in self.server.lanes)
        self._sent_s = sum(lane.sent_s for lane in self.server.lanes)
        return {"apply_s": round(self._applied_s - before[0], 6), "send_s": round(self._sent_s - before[1], 6)}

    def _open(self, lane: int, restored: CheckpointSource | None) -> Lane:
        env, spec = self._env, self._env.spec
        router: zmq.Socket[bytes] = open_router(self._context, self._keys)
        self.ports.append(bind_first_free(router, spec.ports.port, spec.address))
        state = LaneState(
            lane=lane,
            layout=self.layout,
            trainer_count=spec.training.trainers,
            seed=env.seed,
            mode=parse_mode(spec.training.mode),
            save_every=spec.saving.save_every if spec.saving.checkpoints else None,
            save_model_every=spec.saving.save_model_every or EACH_PASS,
            half=spec.training.wire == "float16",
            key_cache=spec.training.key_cache,
            lender=self._shm,
            epoch=spec.epoch,
            copying=LaneCopies(in_slices=True),
        )
        gone = {int(rank): step for rank, step in spec.recover.left.items()} if spec.recover else {}
        core = ServerCore(state, self._open_model, restored, gone)
        on_save, on_cut = self._take, self._take_cut
        return Lane(core, router, on_save, on_cut, env.secure, self._shm, self._open_streams(lane), self._report_step)

    def _open_streams(self, lane: int) -> StreamServer | None:
        """Return the streams of a lane: on this host, and to other hosts, sealed if connections are encrypted."""
        spec, sealed = self._env.spec, self._env.secure
        if spec.streams == "off":
            return None
        reaches_others = not sealed or sealed_streams.load() is not None
        tcp, local = open_listener(spec.ports.port, spec.address) if reaches_others else None, spec.shm != "off"
        if not local and tcp is None:
            return None
        return StreamServer(lane, spec.training.trainers, local, tcp, sealed)

    def _take(self, lane: Lane, save: Save) -> None:
        self.server.take(lane, save)

    def _take_cut(self, lane: Lane, output: CutOutput) -> None:
        self.cuts.take(lane, output)

    def _open_model(self, path: str) -> ModelSource:
        """Return the model at `path`, opened and verified once for all lanes."""
        with self._opening:
            if path not in self._models:
                self._models[path] = open_saved_model(self._env, path, self._peers)
            return self._models[path]

    def _write(self, save: Save) -> None:
        receipt = write_save(self._env, self.layout, self._env.rank, save, self._count_tensor)
        self._count_tensor()  # the next save
        receipt["pause_s"] = round(save.pause_s, 6)
        paused = f"pushes waited for {1e3 * save.pause_s:.0f} ms"
        line = f"pserver {self._env.rank}: saved {save.tag} at step {save.step}, {receipt['bytes']:,} bytes; {paused}"
        self._send("saved", {**receipt, "line": line})
        print_line(line)


def _clear_half_written(env: Environment) -> None:
    for directory in (env.output_dir, env.checkpoint_dir):
        for path in Path(directory).glob(f"*/.pserver-{env.rank:05d}.safetensors-*"):
            path.unlink(missing_ok=True)
