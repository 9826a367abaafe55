"""The facts and files of one node: jobs, logs, ports, addresses, processes, locks.

May import `event_loop` and `gpus`. Start reading at `jobs.py`.
"""
