"""The lead's part in models and checkpoints: when cuts are made, what is complete, what stays, what is copied. Pure.

May import what `agent/lead` may. Start reading at `saves.py`.
"""
