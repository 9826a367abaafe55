"""The commands, their options and their help. Implementations are imported on call to keep `--help` fast.

May import `cli.typer_adapter`, `cli.completion` and, when a command is called, `cli.commands`. Start reading at
`commands.py`.
"""

from clusterctl.cli.declarations import commands, completion, nodes, views
from clusterctl.cli.declarations.root import NAME, app

#: The commands in the order of `clusterctl --help`.
ORDER = (
    *("init", "trust", "check", "setup", "split", "dispatch"),
    *("start", "keep", "submit", "save", "stop"),
    *("status", "jobs", "logs", "why", "report", "diff", "export", "collect"),
    *("exec", "task", "prune", "demo", "completion", "help", "metrics", "disconnect"),
)
app.registered_commands.sort(key=lambda command: ORDER.index(str(command.name)))

__all__ = ["NAME", "app", "commands", "completion", "nodes", "views"]
