"""A parsed command line whose command is not loaded yet. This module imports little, to keep --help fast."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from clusterctl.cli.arguments import GlobalOptions
from clusterctl.cli.console import Console
from clusterctl.errors import ClusterctlError

if TYPE_CHECKING:
    from clusterctl.cli.invocation import Invocation
    from clusterctl.config import Conf


class CommandLine:
    """A valid command line: `context.obj` of the functions in `declarations`."""

    def __init__(
        self, options: GlobalOptions, program_args: list[str] | None, console: Console, *, reads_conf: bool
    ) -> None:
        self.console = console
        self._options = options
        self._program_args = program_args
        self._reads_conf = reads_conf
        self._conf: Conf | None = None
        self._invocation: Invocation | None = None

    def check_conf(self, *, overridden: bool) -> None:
        """Raise ConfigError if the command needs conf.py and that is wrong: the command need not be loaded then.

        If options of the command override settings, it checks those itself.
        """
        if self._reads_conf:
            from clusterctl.config import read

            self._conf = read(Path(self._options.conf) if self._options.conf else None, os.environ)
            if not overridden:
                self._conf.settings(os.environ)

    def invocation(self) -> Invocation:
        """Return the one invocation of this call."""
        from clusterctl.cli.invocation import Invocation

        self._invocation = Invocation(self._options, self._program_args, self.console, self._conf)
        return self._invocation

    def remember(self, error: ClusterctlError | None) -> None:
        """Do what `Invocation.remember` does, if the call got that far."""
        if self._invocation is not None:
            self._invocation.remember(error)
