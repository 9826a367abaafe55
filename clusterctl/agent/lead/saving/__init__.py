"""The lead's part in models and checkpoints: when cuts are made, what is complete, what stays, what is copied.

May import what `lead` imports; all modules are pure. Start reading at `saves.py`.
"""
