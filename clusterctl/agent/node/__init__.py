"""The facts and files of one node: jobs, logs, ports, addresses, processes, locks.

Imports nothing of the other folders. Start reading at `jobs.py`.
"""
