"""The node's end of a dispatch: bytes in, a verified job directory out; and `start --adopt`.

May import `node`, `peer` and `relay`. Start reading at `receive.py`.
"""
