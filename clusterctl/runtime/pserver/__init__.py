"""The server's side: requests in, replies and saves out; one lane per port.

May import `checkpoint`, `shm`, `store`, `stream`, `table`, `wire` and the modules of `runtime`, never `trainer`. Start
reading at `core.py`; `python -m clusterctl.runtime.pserver` runs it.
"""
