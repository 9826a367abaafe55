"""The piece server beside each supervisor: serves the pieces of this node, and copies those of others.

It is a process of its own, since the supervisor's one thread carries the heartbeats. May import `node`. Start reading
at `process.py`.
"""
