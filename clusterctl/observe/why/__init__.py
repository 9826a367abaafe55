"""The first cause of a failure, from the events and logs of all nodes.

Pure except for `report.py`, which queries the nodes; may import what `observe` may. Start reading at `first_cause.py`.
"""
