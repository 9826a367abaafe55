"""The Python API of the control machine: what the commands of `cli` do, for programs.

May import every part that runs on the control machine, but not `agent`, `runtime` or `cli`. It prints nothing, asks
nothing, and touches neither signals nor the working directory. `clusterctl/__init__.py` has its public names. Start
reading at `cluster.py`.
"""
