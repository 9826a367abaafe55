"""The GPUs of a node, as `nvidia-smi` reports them, and the processes that use them.

Imports none of the agent's other folders. Start reading at `nvidia_smi.py`.
"""
