"""Streams: one socket per trainer and lane, for the messages of that lane, which ZeroMQ opens and stands in for.

May import `wire`. Start reading at `framed.py`.
"""
