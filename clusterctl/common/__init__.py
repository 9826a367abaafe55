"""What the control machine and the nodes both need: formats, paths, processes, JSON.

Shipped to the nodes with `agent` and `runtime`; standard library only, Python 3.9 or later; imports nothing else of
clusterctl. Start reading at `paths.py`.
"""
