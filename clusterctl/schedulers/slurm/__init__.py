"""Slurm: its jobs, their nodes, the reasons for waiting and ending that it gives, and what is submitted to it.

May import `common`, `config`, `errors`, and `scheduled` beside it. Start reading at `hosts.py`.
"""
