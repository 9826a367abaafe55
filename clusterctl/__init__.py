"""clusterctl trains models on plain SSH machines.

This root is shipped to the nodes with `common`, `agent`, `runtime` and `torch`, so it imports nothing. Start reading at
`cli/app.py`; docs/architecture.md shows the parts.
"""

__version__ = "0.1.0"
