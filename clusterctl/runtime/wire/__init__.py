"""The bytes between trainers and pservers: messages, sockets, authentication.

Imports nothing of the other folders. Start reading at `messages.py`, the only place that knows the format.
"""
