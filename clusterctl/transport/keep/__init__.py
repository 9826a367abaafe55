"""Connections that outlive a command: a helper process of the user's own keeps them for the next one.

A command that wants them (KEEP_CONNECTIONS_S) opens none itself. It talks to the helper over a unix socket, one
connection for each command on a node; the helper opens SSH connections as `pool.py` does, and relays the streams.
Where there is no helper and none can be started, the command connects itself.

May import `common`, `errors` and the rest of `transport`. Start reading at `client.py`; `helper.py` is the other side.
"""
