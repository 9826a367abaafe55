"""The run's decisions, made on node 0, and the connections that carry them.

May import `event_loop`; most modules are pure. Start reading at `state_machine.py`.
"""
