"""One invocation: its options, its console, and the steps from conf.py to a cluster."""

from __future__ import annotations

import os
import re
import sys
import threading
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from clusterctl.cli.arguments import GlobalOptions
from clusterctl.cli.completion.known import cache_dir
from clusterctl.cli.console import Console
from clusterctl.cli.progress import ProgressLine
from clusterctl.errors import ClusterctlError, UsageError

if TYPE_CHECKING:
    from clusterctl.cluster import Cluster
    from clusterctl.config import Settings
    from clusterctl.inventory import Inventory
    from clusterctl.observe.record.references import Reference
    from clusterctl.schedulers import JobWatch


class Invocation:
    def __init__(self, options: GlobalOptions, program_args: list[str] | None, console: Console) -> None:
        """`program_args` is None if none were given."""
        self.options = options
        self.program_args = program_args
        self.console = console
        self.progress = ProgressLine(console)
        #: The job of `cluster_of` if a scheduler has it, and this is not on its nodes.
        self.scheduled: JobWatch | None = None
        self._opened: tuple[Cluster, Path] | None = None
        self._tolerated: ClusterctlError | None = None
        self.pinned: dict[str, object] = {}  # settings on which a command has decided itself

    @property
    def cache_dir(self) -> Path:
        """This user's cache directory; it may not exist yet."""
        return Path(cache_dir(os.environ))

    @property
    def environ(self) -> Mapping[str, str]:
        """The environment of this program."""
        return os.environ

    def settings(self, chosen: Mapping[str, str] | None = None, **overrides: object) -> Settings:
        """Load conf.py, overridden by options of the command: settings by name, None where the option is absent.

        `chosen` are those of `--set`, as text.
        """
        from clusterctl.config import load

        given = {**self.pinned, **{name: value for name, value in overrides.items() if value is not None}}
        conf = Path(self.options.conf) if self.options.conf else None
        return load(conf, os.environ, overrides=given, chosen=chosen or {})

    def cluster(self, settings: Settings | None = None) -> Cluster:
        """Return the nodes of conf.py that `--only` selects."""
        from clusterctl.schedulers import resolve

        return self._open(resolve(settings or self.settings(), os.environ))

    def cluster_of(self, job: str | None, *, whole: bool = False) -> Cluster:
        """Return the nodes of a job to look at, as `cluster` does; with `whole` all of them, as `whole_cluster` does.

        The files of a job whose nodes its scheduler has taken back are read here. Raises NoRunError if there are none.
        """
        from clusterctl.schedulers import resolve_job

        if whole:
            self._need_all()
        settings, self.scheduled = resolve_job(self.settings(), os.environ, job)
        cluster = self._open(settings)
        if self.scheduled is not None:
            cluster.is_over = self.scheduled.is_over
        return cluster

    def cluster_of_all(self) -> tuple[Cluster | None, Callable[[str | None], str] | None]:
        """Return the nodes on which to look for all jobs, None if there is no trace of any.

        Where their files are read here, also return what tells the state of a run, by its name, that has not ended.
        """
        from clusterctl.schedulers import resolve_all

        settings, state_of = resolve_all(self.settings(), os.environ)
        if not settings.hosts:
            return None, None
        cluster = self._open(settings)
        if state_of is not None:
            cluster.is_over = lambda: True
        return cluster, state_of

    def _open(self, settings: Settings) -> Cluster:
        """Return the nodes of settings with hosts that `--only` selects."""
        from clusterctl.cli import last_failed
        from clusterctl.cli.fake_down import explained
        from clusterctl.cluster import Cluster
        from clusterctl.inventory import build, select

        inventory = build(settings)
        record = last_failed.record_path(self.cache_dir, settings)
        self.console.explain = partial(explained, conf=settings.source)
        only = self.options.only
        nodes = select(inventory, only, last_failed.read(record)) if only else inventory.nodes
        cluster = Cluster(settings, inventory, nodes, self._ask)
        cluster.watch = self.progress.watch
        self._opened = cluster, record
        self._keep_for_completion(cluster)
        return cluster

    def _keep_for_completion(self, cluster: Cluster) -> None:
        """Keep the names of the nodes, and from now on of the jobs that the command reports."""
        from clusterctl.cli.completion.seen import Seen

        if cluster.settings.source is not None:
            seen = Seen(self.cache_dir, cluster.settings.source, of_some=bool(self.options.only))
            seen.nodes(cluster.inventory)
            self.console.on_document = seen.document

    def _ask(self, prompt: str, stop: threading.Event) -> str | None:
        """Prompt the user for a secret, on a line of its own."""
        from clusterctl.transport import ask_terminal

        with self.progress.hidden():
            return ask_terminal(prompt, stop)

    def tolerate(self, error: ClusterctlError) -> None:
        """Record nodes that failed and that the user allows to be missing: not an error, but `failed@last` has them."""
        self._tolerated = error

    def remember(self, error: ClusterctlError | None) -> None:
        """Save the nodes that a command failed on, given the `error` that ended it, for `--only failed@last`."""
        from clusterctl.cli import last_failed

        if self._opened is None or not self._opened[0].asked:
            return
        failed = last_failed.failed_nodes(error or self._tolerated)
        if failed is not None:
            last_failed.write(self._opened[1], failed)

    def whole_cluster(self, settings: Settings | None = None) -> Cluster:
        """Return all nodes, for commands that cannot work on some of them."""
        self._need_all()
        return self.cluster(settings)

    def _need_all(self) -> None:
        if self.options.only:
            raise UsageError("this command does not accept --only: a job runs on all its nodes or not at all")

    def run_of(self, cluster: Cluster, text: str | None, number: int | None = None) -> Reference:
        """Return a run of `cluster_of`. That of a scheduler's job may be named by the job's id, or not at all.

        Raises NoRunError if that job has no run yet.
        """
        job = self.scheduled.now() if self.scheduled is not None else None
        if job is None or job.run is None or text not in (None, job.id, job.run):
            return run_of(cluster, text, number)
        from clusterctl.schedulers import NoRunError

        named = run_of(cluster, job.run, number)
        if not named.chosen:
            raise NoRunError(job)
        return named

    def job_of(self, cluster: Cluster, text: str | None) -> str | None:
        """Return the job of `run_of`. Raises UsageError if the text names another run of it than the newest."""
        from clusterctl.observe.record.references import need_newest

        return need_newest(cluster, self.run_of(cluster, text))

    def need_nodes(self) -> None:
        """Raise NoRunError if the nodes of the job may be those of others by now, for what acts on them."""
        if self.scheduled is not None and self.scheduled.is_over():
            from clusterctl.schedulers import NoRunError

            raise NoRunError(self.scheduled.now())


def job_name(settings: Settings, inventory: Inventory, job: str) -> str:
    """Return the job directory in a form valid on every node; the bare id if ROOT_DIR differs between hosts."""
    roots = {node.root_dir for node in inventory.nodes}
    return f"{roots.pop()}/{job}" if len(roots) == 1 else job


def job_ref(settings: Settings, ref: str | None) -> str | None:
    """Return the reference to send to the nodes: a job directory below ROOT_DIR becomes its id, valid on every node.

    The local shell may have expanded the `~` of ROOT_DIR to this machine's home, which is meaningless on the nodes.
    """
    if ref is None:
        return None
    path = ref.rstrip("/")
    if not path:
        raise UsageError(f"{ref!r} is not a job", hint="clusterctl jobs lists the jobs on the nodes")
    if "/" not in path:
        return path
    if settings.root_dir.startswith("~/"):
        home = str(Path.home())
        if path.startswith(home + "/"):
            path = "~" + path[len(home) :]
    parent, _, name = path.rpartition("/")
    root = re.escape(settings.root_dir.rstrip("/")).replace(re.escape("{node}"), "[0-9]+")
    return name if re.fullmatch(root, parent) else path


def run_of(cluster: Cluster, text: str | None, number: int | None = None) -> Reference:
    """Return the run that a user named as JOB, JOB/RUN or with the name of a run; `number` is that of `--run`."""
    from clusterctl.observe.record.references import Reference, resolve, run_number, split_run

    ref, run = (None, None) if text is None else split_run(text)
    ref = job_ref(cluster.settings, ref)
    reference = Reference(ref, run) if run is not None else resolve(cluster, ref)
    if number is None or reference.run == run_number(number):
        return reference
    if reference.run is not None:
        hint = f"leave out --run {number}, or name the job: {reference.job}"
        raise UsageError(f"{text} is run {int(reference.run)} of {reference.job}, not run {number}", hint=hint)
    return Reference(reference.job, run_number(number))


def job_of(cluster: Cluster, text: str | None) -> str | None:
    """Return the job to send to the nodes. Raises UsageError if the text names another run of it than the newest."""
    from clusterctl.observe.record.references import need_newest

    return need_newest(cluster, run_of(cluster, text))


def fail_on_broken_pipe() -> None:
    """Exit quietly when the reader is gone, as in `clusterctl logs | head`: the flush at exit must not fail."""
    sys.stdout = open(os.devnull, "w")  # noqa: PTH123, SIM115 - open until the process exits, which is now
