"""The live screen of a run: `start` and `status --watch` show it.

May import what `cli` may. Start reading at `screen.py`, which is pure: a record and keys in, lines out.
"""
