"""Whole runs in one process: the real supervisors, lead, leases, placement and saves, on simulated machines.

What is real: `agent.supervisor` and `agent.lead`, but for what they use of the system. Time, the network, clocks, the
disks, processes, guardians' pipes and programs are simulated (`time`, `network`, `machine`, `program`, `stand_ins`). A
history is drawn from a seed (`history`) and can be repeated: `python -m simulation 1 SEED`, in the directory `tests`.
"""
