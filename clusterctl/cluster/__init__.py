"""The nodes that a command is about, and one conversation with the agent of each.

May import config, inventory, transport and common; the stages go to nodes through it. Start reading at `cluster.py`.
"""
