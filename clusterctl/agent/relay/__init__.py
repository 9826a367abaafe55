"""Relaying: a node forwards a stream that many nodes need.

May import `event_loop`, `node`, `peer` and `tls`. Start reading at `relay.py`.
"""
