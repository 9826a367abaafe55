"""The facts and files of one node: jobs, logs, ports, addresses, processes, locks.

May import `event_loop`. Start reading at `jobs.py`.
"""
