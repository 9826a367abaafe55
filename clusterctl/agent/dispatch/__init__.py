"""The node's end of a dispatch: bytes in, a verified job directory out.

May import `node`, `peer` and `relay`. Start reading at `receive.py`.
"""
