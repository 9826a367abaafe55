"""The tasks that `start` runs on this machine: BEFORE_START and AFTER_END."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from clusterctl.api.exec import load_tasks
from clusterctl.cli.attached.term import on_term
from clusterctl.cli.commands.task import for_people
from clusterctl.cli.invocation import Invocation
from clusterctl.cluster import Cluster
from clusterctl.config import Settings
from clusterctl.errors import ClusterctlError, ConfigError, InterruptedRun, JobFailedError, UsageError
from clusterctl.launch import Launch

if TYPE_CHECKING:
    from clusterctl.fabric.execution import Call

NOT_SEEN = "AFTER_END was not run: start did not see the end of the run"
DETACHED = "AFTER_END does not run with --detach: it needs a start that follows the run to its end"
OUTCOME: Mapping[str, object] = {"state": "", "job": "", "run": 0, "exit_code": 0}


class Hooks:
    """The hooks of one `start`. `started` has its run, once a node is ordered to start it, and what resumed it."""

    def __init__(self, invocation: Invocation, settings: Settings, *, wanted: bool) -> None:
        """Find the tasks, if they are `wanted` and the settings name any. Raises ConfigError."""
        self.started: list[Launch] = []
        self._invocation = invocation
        self._settings = settings
        self._named = wanted and bool(settings.before_start or settings.after_end)
        if self._named:
            self._file = load_tasks(settings)
            self._call("BEFORE_START", settings.before_start, {})
            self._call("AFTER_END", settings.after_end, OUTCOME)

    def before_start(self) -> None:
        """Run the task of BEFORE_START. Raises ClusterctlError if it fails."""
        try:
            self._run("BEFORE_START", self._settings.before_start, {})
        except ClusterctlError as exc:
            exc.message = f"BEFORE_START: {exc.message}; nothing was started"
            raise

    @contextlib.contextmanager
    def after_end(self, follow: Callable[..., Any], *, attached: bool) -> Iterator[Callable[..., Any]]:
        """Yield `follow`; once the run that it follows has ended, run AFTER_END, whose failure is only a warning."""
        if not (self._named and self._settings.after_end):
            yield follow
            return
        if not attached:
            self._invocation.console.warn(DETACHED)
            yield follow
            return
        ended: list[bool] = []
        until_followed = contextlib.ExitStack()

        def followed(invocation: Invocation, cluster: Cluster, run: Launch) -> Any:
            until_followed.close()
            view = follow(invocation, cluster, run)
            ended.append(view.ended is not None)
            return view

        try:
            with until_followed:
                until_followed.enter_context(on_term(self._warn_of_term))
                yield followed
        except JobFailedError as exc:
            self._end(str(exc.details.get("state", "failed")), exc.exit_code)
            raise
        except InterruptedRun as exc:
            self._end("stopped", exc.exit_code)
            raise
        except BaseException:
            if self.started:
                self._invocation.console.warn(NOT_SEEN)
            raise
        if any(ended):
            self._end("succeeded", 0)
        else:  # detached by a key
            self._invocation.console.warn(NOT_SEEN)

    def _warn_of_term(self, _: int) -> None:
        """Before TERM ends this program, warn if there is a run."""
        if self.started:
            self._invocation.console.warn(NOT_SEEN)

    def _end(self, state: str, exit_code: int) -> None:
        for run in self.started[-1:]:
            outcome = {"state": state, "job": run.job, "run": int(run.run), "exit_code": exit_code}
            try:
                self._run("AFTER_END", self._settings.after_end, outcome)
            except ClusterctlError as exc:
                self._invocation.console.warn(f"AFTER_END: {exc}; the exit code stays {exit_code}")

    def _run(self, setting: str, name: str | None, values: Mapping[str, object]) -> None:
        if self._named and (call := self._call(setting, name, values)) is not None:
            with for_people(self._invocation.console):
                self._file.run_here(str(name), [call], print)

    def _call(self, setting: str, name: str | None, values: Mapping[str, object]) -> Call | None:
        if name is None:
            return None
        try:
            return self._file.hook(name, values)
        except UsageError as exc:
            place = self._settings.place(setting)
            raise ConfigError(f"{place}{setting} = {name!r}: {exc.message}", hint=exc.hint) from exc
