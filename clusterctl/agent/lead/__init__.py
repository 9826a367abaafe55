"""The decisions about a run, made on its first node, and the connections that carry them.

May import `event_loop` and `tls`; most modules are pure. Start reading at `state_machine.py`.
"""
