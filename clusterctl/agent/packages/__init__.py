"""Python packages on the node: interpreters, wheels, virtual environments.

Imports none of the agent's other folders. Start reading at `venvs.py`.
"""
