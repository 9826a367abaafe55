"""The operations of the agent: one module for each group, called by `main.py`, one SSH command for each call.

May import `gpus`, `node`, `packages`, `peer`, `relay` and `supervisor`. Start reading at `start.py`.
"""
