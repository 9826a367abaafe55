"""The nodes of a conf.py, for a program: dispatch, find jobs, run commands."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from clusterctl.api import nodes as on_nodes
from clusterctl.api.dispatch import failed_nodes, scan, send
from clusterctl.api.exec import (
    Executed,
    NodeOutput,
    executed,
    in_directory_of,
    remote_command,
    run_on_nodes,
    same_on_all,
)
from clusterctl.api.job import Job, jobs_on_nodes
from clusterctl.api.nodes import Checked, Prepared, Pruned, requirements_of
from clusterctl.api.opening import Node, public
from clusterctl.api.run import Run
from clusterctl.api.session import ClusterSession, texts
from clusterctl.api.status import list_jobs
from clusterctl.api.sweep import Sweep, TrialOptions, split
from clusterctl.errors import UsageError
from clusterctl.inventory import Node as InventoryNode
from clusterctl.launch import adopt
from clusterctl.observe.record.references import job_ref, run_of
from clusterctl.observe.record.status import find

KEPT_BYTES = 16 << 20  # of each stream of a command on a node


class Cluster:
    """The nodes of a conf.py and the connections to them. A context manager; thread-safe.

    It prints and asks nothing, ends no process, and leaves signals and the working directory alone. Secrets, such as
    the passphrase of a key, have to be in an SSH agent. All methods raise the errors of `clusterctl.errors`.
    """

    def __init__(self, session: ClusterSession) -> None:
        self._session = session
        self._sweeps: weakref.WeakSet[Sweep] = weakref.WeakSet()

    @classmethod
    def from_conf(
        cls,
        path: str | os.PathLike[str] | None = None,
        *,
        set: Mapping[str, object] | None = None,
        only: str | None = None,
        progress: bool | Callable[[str], object] = False,
    ) -> Cluster:
        """Open a conf.py; by default that in CLUSTERCTL_CONF, else ./conf.py. Nodes are first asked by a method.

        `set` are settings over those in the file, as with `--set`; `only` selects nodes, as with `--only`. `progress`
        is called with lines of text about operations and warnings, one call at a time, from any thread; True prints
        them. Raises ConfigError for mistakes in the file, and UsageError for invalid arguments.
        """
        environ = dict(os.environ)
        conf = Path(path or environ.get("CLUSTERCTL_CONF") or "conf.py").absolute()
        write = print if progress is True else progress if callable(progress) else None
        return cls(ClusterSession(conf, set or {}, only, environ, write))

    def __repr__(self) -> str:
        return f"<Cluster of {self._session.conf}>"

    @property
    def nodes(self) -> tuple[Node, ...]:
        """The nodes, or those that `only` selects."""
        return tuple(map(public, self._session.nodes.nodes))

    def dispatch(
        self,
        workspace: str | os.PathLike[str],
        *,
        rehash: bool = False,
        allow_partial: bool = False,
        fresh: bool | None = None,
    ) -> Job:
        """Send a workspace to all nodes and return its job; only what is missing there is sent.

        `rehash` reads every file again. With `allow_partial`, nodes that fail only have to be left out of the start. If
        the last job of the workspace was never started, its directories are used again, unless this object has
        dispatched it, or another program that is still there. With `fresh` False only the latter makes another job,
        with `fresh` True every call does.
        """
        nodes, progress, directory = self._session.nodes, self._session.progress, Path(workspace)
        progress.say(f"dispatching {directory} to {len(nodes.nodes)} nodes")
        hashing, sending = progress.bytes("hashing"), progress.bytes("sending")
        cache = self._session.cache
        scanned = scan(nodes, directory, cache=cache, rehash=rehash, report=hashing.here)
        warnings = (*scanned.missing, *scanned.warnings)
        for warning in warnings:
            progress.say(f"warning: {warning}")
        more: Any = {"cache": cache, "rehash": rehash, "allow_partial": allow_partial}
        more.update(reservations=self._session.reservations, fresh=fresh)
        done = send(nodes, scanned.workspace, sending.on, progress.say, **more)
        failed = failed_nodes(done, len(nodes.nodes), allow_partial=allow_partial)
        progress.say(f"{done.job} is on {len(nodes.nodes) - len(failed)}/{len(nodes.nodes)} nodes")
        return Job(self._session, done.job, warnings=warnings, failed=failed)

    def map(
        self,
        settings: Iterable[Mapping[str, object]],
        *,
        workspace: str | os.PathLike[str] = "workspace",
        args: Sequence[str] = (),
        most: int = 1,
        timeout: float | None = None,
        collect: str | os.PathLike[str] | None = None,
    ) -> Sweep:
        """Run a workspace once with each of the settings, at most `most` of them at a time, and return the `Sweep`.

        Each is a job of its own, dispatched now: all of them train the same files. A name in upper case is a setting
        of conf.py; any other is an argument of the program, so that `{"lr": 0.1, "MODE": "async"}` runs it with
        `--lr=0.1` after `args`. Runs that take longer than `timeout` seconds are stopped. With a directory to
        `collect` into, each run is collected into a directory there that is named like its job. Raises ConfigError or
        UsageError for settings that cannot be, before anything is sent.
        """
        if most < 1:
            raise UsageError(f"most has to be at least 1, not {most}")
        every = [dict(one) for one in settings]
        for one in every:
            self._session.settings(texts(split(one)[1]))
        jobs = [(one, self.dispatch(workspace, fresh=True)) for one in every]
        options = TrialOptions(args, timeout, None if collect is None else Path(collect))
        sweep = Sweep(jobs, most, self._figures, options)
        self._sweeps.add(sweep)
        return sweep

    def _figures(self, job: str) -> dict[str, float]:
        """Return the loss and the metrics of the newest run of a job, as `clusterctl jobs` shows them."""
        newest = next((one.newest for one in list_jobs(self._session.nodes).jobs if one.job == job), None)
        if newest is None:
            return {}
        loss = {} if newest.loss is None else {"loss": newest.loss}
        return {**loss, **{name: metric.last for name, metric in newest.metrics.items()}}

    def adopt(self, directory: str, *, allow_partial: bool = False) -> Job:
        """Record a directory that was deployed by hand as a job on all nodes, and return that job.

        It is the name of a directory in ROOT_DIR, or its path. With `allow_partial`, nodes that fail only have to be
        left out of the start. The warnings name files that are not the same on all nodes.
        """
        with self._session.whole() as nodes:
            done = adopt(nodes, job_ref(nodes.settings.root_dir, directory) or directory, allow_partial=allow_partial)
        warnings = [f"{path} differs between nodes" for path in done.differ]
        warnings += [f"{path} is missing on some nodes" for path in done.missing]
        return Job(self._session, done.job, warnings=warnings, failed=done.failed)

    def check(self) -> Checked:
        """Check every node and all pairs of them for what would make a start fail. A silent node is a finding."""
        return on_nodes.check(self._session.nodes)

    def setup(
        self,
        workspace: str | os.PathLike[str],
        *,
        offline: bool = False,
        upgrade: bool = False,
        uv: bool | None = None,
    ) -> Prepared:
        """Make the Python environment of a workspace on every node that lacks it; raise if a node is not ready.

        `offline`: nodes use no network. `upgrade` chooses new versions. `uv`: build with uv (True), where that pays off
        (None), or never (False).
        """
        nodes, say = self._session.nodes, self._session.progress.say
        requirements = requirements_of(Path(workspace), nodes.settings)
        options: Any = {"offline": offline, "upgrade": upgrade, "uv": uv}
        return on_nodes.setup(nodes, requirements, say=say, cache=self._session.cache, **options).or_raise()

    def prune(self, *, keep: int = 3, older_than_s: float = 86400.0, plan: bool = False) -> Pruned:
        """Remove old jobs, with their outputs, and content that no job needs; with `plan`, only return what would go.

        The newest `keep` jobs stay, those that run, and what was used within `older_than_s` seconds. Raises if a node
        did not answer or did not remove everything.
        """
        nodes, age = self._session.nodes, older_than_s
        return on_nodes.prune(nodes, lambda found: not plan, keep=keep, older_than_s=age).or_raise()

    def job(self, ref: str | None = None) -> Job:
        """Return a job by its id, a unique prefix of it, its directory, or the name of a run.

        By default it is the one that runs, if exactly one does, else the one that ran last. Raises UsageError if there
        is none.
        """
        nodes = self._session.nodes
        named = run_of(nodes, ref)
        return Job(self._session, find(nodes, named.job)[0])

    def run(self, ref: str | None = None) -> Run:
        """Return a run by its name or JOB/RUN; a job means its newest run."""
        nodes = self._session.nodes
        named = run_of(nodes, ref)
        number = None if named.run is None else int(named.run)
        return Job(self._session, find(nodes, named.job)[0]).run(number)

    def jobs(self) -> list[Job]:
        """Return the jobs on the nodes that answer, newest first. Raises if none of them does.

        `progress` is called with a line about each of the others.
        """
        return [Job(self._session, job.job) for job in jobs_on_nodes(self._session)]

    def exec(self, argv: Sequence[str] | str, *, job: str | Job | None = None) -> list[Executed]:
        """Run a command on all nodes and return what it printed on each, in the order of the nodes.

        A list is a program and its arguments, a text is a line for a shell. With a `job` it runs in its directory. A
        node that fails does not raise an error: see `Executed.ok`. There is no time limit; use `timeout 60 ...`.
        """
        nodes = self._session.nodes
        command = remote_command([argv] if isinstance(argv, str) else list(argv))
        job_id = job.id if isinstance(job, Job) else job
        commands = same_on_all(command) if job_id is None else in_directory_of(nodes, job_id, command)[1]
        outputs = {node.id: NodeOutput(KEPT_BYTES) for node in nodes.nodes}

        def take(node: InventoryNode, piece: bytes, is_error: bool) -> None:
            outputs[node.id].keep(piece, is_error)

        def end(node: InventoryNode, code: int) -> None:
            outputs[node.id].code = code

        outcomes = run_on_nodes(nodes, commands, take, end)
        return [executed(outcome, outputs[outcome.node.id]) for outcome in outcomes]

    def close(self) -> None:
        """Close all connections; runs go on, but for those of a sweep. Safe to call again."""
        for sweep in list(self._sweeps):
            sweep.abandon()
        self._session.close()

    def __enter__(self) -> Cluster:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
