"""The bytes between trainers and pservers: messages, sockets, authentication.

Imports none of the runtime's other folders. Start reading at `messages.py`, the only module that knows the format.
"""
