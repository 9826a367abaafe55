"""The progress of an operation that takes over a second, in one line below the output.

May import the rest of `cli`, which stages know nothing of: they report through callbacks. Start reading at `line.py`.
"""

from clusterctl.cli.progress.line import ProgressLine
from clusterctl.cli.progress.operation import Operation

__all__ = ["Operation", "ProgressLine"]
