"""Pieces of models and checkpoints, from node to node. Standard library only; imports `common`.

Start reading at `protocol.py`. Every supervisor has a piece server beside it (`agent/replication/`), which serves and
copies pieces; pservers read from it with `client.py`.
"""
