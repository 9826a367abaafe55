"""The process that owns one node's processes of one run, and its guardian.

May import `lead`, `node` and `event_loop`. Start reading at `supervisor.py`.
"""
