"""The status, logs and events of jobs, gathered from all nodes.

May import `cluster`, `common`, `errors` and `inventory`. Start reading at `status.py`.
"""
