"""The logs, events and records of jobs, gathered from all nodes.

May import `cluster`, `common`, `errors` and `inventory`. Start reading at `record/model.py`.
"""
