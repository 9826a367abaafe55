"""Saved models and checkpoints as files: written by one pserver each, read back onto any number of them.

May import `table` and `environment`. Start reading at `safetensors.py`.
"""
