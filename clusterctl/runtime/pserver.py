"""The generic pserver process: `python -m clusterctl.runtime.pserver`, configured by its environment alone.

It binds, says `ready`, serves until the supervisor says `finish`, and ends with 0; with 1 and one clear line on
standard error when something is wrong, and at once when the supervisor is gone or SIGTERM comes.
"""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import Any

import zmq

from clusterctl.runtime.control import Control
from clusterctl.runtime.core import ServerCore
from clusterctl.runtime.environment import Environment, read_environment
from clusterctl.runtime.errors import ProcessError, RuntimeFailure
from clusterctl.runtime.members import ModelSource, Save
from clusterctl.runtime.models import open_model
from clusterctl.runtime.pieces import Cut, write_piece
from clusterctl.runtime.progress import say
from clusterctl.runtime.server import Server
from clusterctl.runtime.sockets import bind_first_free, open_context, open_router
from clusterctl.runtime.zap import Gate


def main() -> int:
    """Runs a pserver to its end; returns the exit status."""
    signal.signal(signal.SIGTERM, _terminate)
    try:
        env = read_environment()
        if env.role != "pserver":
            raise ProcessError("CLUSTERCTL_ROLE is not pserver", remedy="pservers are started by clusterctl")
        serve(env)
    except RuntimeFailure as failure:
        sys.stderr.write(f"pserver: {failure}\n")
        return 1
    except OSError as failure:
        sys.stderr.write(f"pserver: a save failed: {failure}; free space or check the output directory\n")
        return 1
    return 0


def serve(env: Environment) -> None:
    """Serves one pserver of a run, from bind to `finish`."""
    core = _make_core(env)
    context = open_context()
    keys = env.keys() if env.secure else None
    if keys is not None:
        Gate(context, keys["allow"])
    router = open_router(context, keys)
    try:
        _serve(env, core, router)
    finally:
        _clear_half_written(env)
        router.close()
        context.term()


def _serve(env: Environment, core: ServerCore, router: zmq.Socket[bytes]) -> None:
    port = bind_first_free(router, int(env.spec.get("port", 7164)), str(env.spec.get("address", "")))
    control: list[Control] = []
    server = Server(core, router, lambda save: _write(env, core, control[0], save), secure=env.secure)
    control.append(Control(env.control_fd, lambda command: server.finish() if command == "finish" else None))
    control[0].send("ready", ports=[port])
    say(f"pserver {env.rank}: ready on port {port}")
    try:
        server.run()
    finally:
        _report(core, server)


def _make_core(env: Environment) -> ServerCore:
    def open_saved(path: str) -> ModelSource:
        return open_model(env.job_dir / path)

    return ServerCore(
        pserver=env.rank,
        pservers=int(env.spec["pservers"]),
        trainers=int(env.spec["trainers"]),
        seed=env.seed,
        mode=str(env.spec.get("mode", "sync")),
        open_model=open_saved,
    )


def _write(env: Environment, core: ServerCore, control: Control, save: Save) -> None:
    cut = Cut(env.job, env.run, save.tag, save.pass_, save.step, core.mode, core.seed, core.pserver, core.pservers)
    receipt = write_piece(env.output_dir, cut, core.tables.values())
    control.send("saved", **receipt)
    say(f"pserver {env.rank}: saved {save.tag} at step {save.step}, {receipt['bytes']:,} bytes")


def _report(core: ServerCore, server: Server) -> None:
    if core.staleness:
        counts = ", ".join(f"{age}: {count}" for age, count in sorted(core.staleness.items()))
        say(f"pserver {core.pserver}: staleness of {sum(core.staleness.values())} pushes: {counts}")
    if server.refused:
        say(f"pserver {core.pserver}: refused {sum(server.refused.values())} messages")


def _clear_half_written(env: Environment) -> None:
    for path in Path(env.output_dir).glob(f"*/.pserver-{env.rank:05d}.safetensors-*"):
        path.unlink(missing_ok=True)


def _terminate(signum: int, frame: Any) -> None:
    raise SystemExit(128 + signum)


if __name__ == "__main__":
    sys.exit(main())
