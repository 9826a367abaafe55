"""The process that owns one node's processes of one run, and its guardian.

May import `event_loop`, `lead` and `node`. Start reading at `supervisor.py`.
"""
