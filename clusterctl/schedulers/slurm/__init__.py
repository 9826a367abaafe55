"""Slurm: its jobs, their nodes, and the reasons for waiting and ending that it gives.

May import `config` and `errors`. Start reading at `hosts.py`.
"""
