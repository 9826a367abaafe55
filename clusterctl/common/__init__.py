"""The code that the control machine and the nodes share: formats, paths, processes, JSON.

Shipped to the nodes with `agent` and `runtime`: standard library only, Python 3.9 or later. Imports nothing else of
clusterctl. Start reading at `paths.py`.
"""
