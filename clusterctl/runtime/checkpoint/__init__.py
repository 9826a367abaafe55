"""Saved models and checkpoints as files: each pserver writes its piece; any number of pservers can read them back.

May import `table` and `environment`. Start reading at `safetensors.py`.
"""
