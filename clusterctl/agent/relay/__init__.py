"""One node's part in relaying a stream that all nodes want.

May import `node` and `peer`. Start reading at `relay.py`.
"""
