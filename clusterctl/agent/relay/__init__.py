"""Relaying: a node forwards a stream that many nodes need.

May import `node` and `peer`. Start reading at `relay.py`.
"""
