"""Python packages on the node: interpreters, wheels, virtual environments.

Imports nothing of the other folders. Start reading at `venvs.py`.
"""
