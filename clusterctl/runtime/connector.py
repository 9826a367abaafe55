"""`connect()`, the entry point of a training program."""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Sequence
from typing import TypeVar

from clusterctl.runtime import main_guard
from clusterctl.runtime.environment import Environment, read_environment
from clusterctl.runtime.errors import ProcessError
from clusterctl.runtime.local import LocalLink
from clusterctl.runtime.supervisor_socket import SupervisorSocket
from clusterctl.runtime.trainer.link import Link
from clusterctl.runtime.trainer.session import Session
from clusterctl.runtime.trainer.zmq_link import RemoteLink

Kind = TypeVar("Kind", bound=Session)


def connect(load: str | None = None, *, ignore: Sequence[str] = ()) -> Session:
    """Join the run named by the environment, or run a pserver in this process if the environment names no run.

    Use it as a context manager. A clean exit reports to the pservers that this trainer is done; an exception does not,
    so that the run can detect the failure. Without `with`, the end of the program counts as the exit. A trainer that
    exits with code 0 in any other way has failed.

    `load` is the directory (or file) of a saved model that tables start from, relative to the job directory, or to the
    current directory in local mode.

    If a run starts from a checkpoint or a model, tables that it has and nobody declares, and declared ones that it
    lacks, are warnings of the run; if no table matches, the first push raises ModelError. `ignore` has the names of
    tables for which that is meant; `*` and `?` stand for any characters and any one. Not thread-safe.
    """
    return join(Session, load, ignore)


def join(kind: type[Kind], load: str | None, ignore: Sequence[str]) -> Kind:
    """Return a session of this class; see `connect`."""
    env = read_environment()
    main_guard.check(local=env.local)
    if env.role == "pserver":
        raise ProcessError("connect() is for trainers; this process is a pserver")
    main_guard.watch_children()
    supervisor = SupervisorSocket(env.control_fd)
    supervisor.register_stack_dump()
    link = _make_link(env, supervisor)
    try:
        session = kind(env, link, supervisor, load if load is not None else env.spec.saving.load, ignore)
    except BaseException:
        link.close()
        raise
    supervisor.send("connected")
    if not env.local:
        atexit.register(session.leave_at_exit)
        atexit.register(_report_uncaught, supervisor, os.getpid())
    return session


def _report_uncaught(supervisor: SupervisorSocket, pid: int) -> None:
    """Report the exception that ends this process, if one does. Forks of the program do not report theirs."""
    if hasattr(sys, "last_value") and os.getpid() == pid:
        supervisor.send("uncaught", kind=type(sys.last_value).__name__)


def _make_link(env: Environment, supervisor: SupervisorSocket) -> Link:
    if env.local:
        return LocalLink(env)

    return RemoteLink(
        env,
        on_wait=lambda facts: supervisor.send("waiting", **facts),
        on_unanswered=lambda pserver: supervisor.send("unanswered", pserver=pserver),
        on_difference=lambda message: supervisor.send("tables_differ", message=message),
    )
