"""The trainer's side: the object that `connect()` returns, and how it talks to the pservers.

May import `shm`, `store`, `stream`, `table`, `wire` and the modules of `runtime`, never `pserver`. Start reading at
`session.py`.
"""
