"""Memory shared between processes on one host: memfd regions, passed over a unix socket.

May import `wire`. Start reading at `region.py`.
"""
