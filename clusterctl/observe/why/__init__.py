"""The first cause of a failure, from the events and logs of all nodes.

Pure but for `report.py`, which asks the nodes. Start reading at `first_cause.py`.
"""
