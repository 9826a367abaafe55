"""The facts and files of one node: jobs, logs, ports, addresses, processes, locks.

Imports none of the agent's other folders. Start reading at `jobs.py`.
"""
