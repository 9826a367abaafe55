"""Saved models and checkpoints as files: each pserver writes its own, any number of pservers can read them.

May import `environment` and `table`. Start reading at `safetensors.py`.
"""
