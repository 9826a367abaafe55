"""The trainer's side: what `connect()` returns, and how it talks to the pservers.

May import the folders below it (wire, shm, store, table) and the modules of `runtime`, never `pserver`.
Start reading at `session.py`.
"""
