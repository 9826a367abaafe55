"""The trainer's side: the session that `connect()` returns, and its client of the pservers.

May import the folders shm, store, table and wire and the modules of `runtime`, never `pserver`.
Start reading at `session.py`.
"""
