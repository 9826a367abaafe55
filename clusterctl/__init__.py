"""clusterctl trains models on plain SSH machines.

This package root is shipped to the nodes together with `agent` and `runtime`, so it imports nothing.
"""

__version__ = "0.1.0"
