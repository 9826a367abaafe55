"""Chains of stages, each of which a command and the API share: values in, values out, progress through callbacks.

May import every part that runs on the control machine, but not `agent`, `runtime`, `cli` or the rest of `api`. Start
reading at `references.py`.
"""
