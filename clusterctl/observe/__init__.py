"""The logs, events and records of jobs, gathered from all nodes.

May import `cluster`, `common`, `config`, `errors` and `inventory`. Start reading at `record/model.py`.
"""
