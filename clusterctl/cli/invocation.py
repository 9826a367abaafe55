"""One invocation: its options, its console, and the steps from conf.py to a cluster."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from clusterctl.api.opening import ClusterOpener
from clusterctl.api.scheduled import job_of, need_nodes, run_of
from clusterctl.cli import last_failed
from clusterctl.cli.arguments import GlobalOptions
from clusterctl.cli.console import Console
from clusterctl.cli.fake_down import explained
from clusterctl.cli.progress import ProgressLine
from clusterctl.cli.seen import SeenFile
from clusterctl.cluster import Cluster
from clusterctl.config import Conf, Settings, load, read
from clusterctl.config.caches import private_cache
from clusterctl.errors import ClusterctlError, UsageError
from clusterctl.observe.record.references import Reference
from clusterctl.schedulers import JobWatch, ScheduledJob
from clusterctl.transport import ask_terminal


class Invocation:
    def __init__(
        self, options: GlobalOptions, program_args: list[str] | None, console: Console, conf: Conf | None = None
    ) -> None:
        """`program_args` is None if none were given, `conf` the conf.py of the call if that has run already."""
        self.options = options
        self.program_args = program_args
        self.console = console
        self.progress = ProgressLine(console)
        #: The job of `cluster_of` if a scheduler has it, and this is not on its nodes.
        self.scheduled: JobWatch | None = None
        self._conf = conf
        self._opened: tuple[Cluster, Path] | None = None
        self._tolerated: ClusterctlError | None = None
        self._warned: set[str] = set()
        self.pinned: dict[str, object] = {}  # settings on which a command has decided itself

    @property
    def cache_dir(self) -> Path:
        """This user's cache directory, private to the account."""
        return Path(private_cache(os.environ))

    @property
    def environ(self) -> Mapping[str, str]:
        """The environment of this program."""
        return os.environ

    def settings(self, chosen: Mapping[str, str] | None = None, **overrides: object) -> Settings:
        """Load conf.py, overridden by options of the command: settings by name, None where the option is absent.

        `chosen` are those of `--set`, as text.
        """
        given = {**self.pinned, **{name: value for name, value in overrides.items() if value is not None}}
        if self._conf is None:
            self._conf = read(Path(self.options.conf) if self.options.conf else None, os.environ)
        return self._warned_about(self._conf.settings(os.environ, overrides=given, chosen=chosen or {}))

    def settings_of(self, conf: Path) -> Settings:
        """Load another conf.py than that of the call, as it is."""
        return self._warned_about(load(conf, os.environ))

    def _warned_about(self, settings: Settings) -> Settings:
        for warning in settings.warnings:
            if warning not in self._warned:
                self._warned.add(warning)
                self.console.warn(f"warning: {warning}")
        return settings

    def cluster(self, settings: Settings | None = None) -> Cluster:
        """Return the nodes of conf.py that `--only` selects."""
        return self._opened_now(self._opening.nodes(settings or self.settings()))

    def cluster_of(self, job: str | None, *, whole: bool = False) -> Cluster:
        """Return the nodes of a job to look at, as `cluster` does; with `whole` all of them, as `whole_cluster` does.

        If the scheduler has released the job's nodes, its files are read locally. Raises NoRunError if it has none.
        """
        if whole:
            self._need_all()
        cluster, self.scheduled = self._opening.nodes_of_job(self.settings(), job)
        return self._opened_now(cluster)

    def cluster_of_all(self) -> tuple[Cluster | None, Callable[[str | None], str] | None]:
        """Return the nodes on which to look for all jobs, None if there is no trace of any.

        Where their files are read here, also return what tells the state of a run, by its name, that has not ended.
        """
        cluster, state_of = self._opening.nodes_of_all_jobs(self.settings())
        return (None if cluster is None else self._opened_now(cluster)), state_of

    def waiting_jobs(self) -> list[ScheduledJob]:
        """Return the jobs that were handed to a scheduler and wait for nodes."""
        return self._opening.waiting(self.settings())

    @property
    def _opening(self) -> ClusterOpener:
        def failed_last(settings: Settings) -> tuple[int, ...]:
            return last_failed.read(last_failed.record_path(self.cache_dir, settings))

        return ClusterOpener(os.environ, self.options.only, self._ask, failed_last)

    def _opened_now(self, cluster: Cluster) -> Cluster:
        """Return the cluster, with which this invocation works from now on."""
        self.console.explain = partial(explained, conf=cluster.settings.source)
        cluster.watch = self.progress.watch
        self._opened = cluster, last_failed.record_path(self.cache_dir, cluster.settings)
        self._keep_for_completion(cluster)
        return cluster

    def _keep_for_completion(self, cluster: Cluster) -> None:
        """Keep the names of the nodes, and from now on of the jobs that the command reports."""
        if cluster.settings.source is not None:
            seen = SeenFile(self.cache_dir, cluster.settings.source, of_some=bool(self.options.only))
            seen.nodes(cluster.inventory)
            self.console.on_document = seen.document

    def _ask(self, prompt: str, stop: threading.Event) -> str | None:
        """Prompt the user for a secret, on a line of its own."""
        with self.progress.hidden():
            return ask_terminal(prompt, stop)

    def tolerate(self, error: ClusterctlError) -> None:
        """Record nodes that failed and that the user allows to be missing: not an error, but `failed@last` has them."""
        self._tolerated = error

    def remember(self, error: ClusterctlError | None) -> None:
        """Save the nodes that a command failed on, given the `error` that ended it, for `--only failed@last`."""
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
        return run_of(cluster, self.scheduled, text, number)

    def job_of(self, cluster: Cluster, text: str | None) -> str | None:
        """Return the job of `run_of`. Raises UsageError if the text names another run of it than the newest."""
        return job_of(cluster, self.scheduled, text)

    def need_nodes(self) -> None:
        """Raise NoRunError if the nodes of the job may be those of others by now, for what acts on them."""
        need_nodes(self.scheduled)
