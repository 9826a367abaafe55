"""The program on the node, shipped with `common` and `runtime`: standard library only, Python 3.9 or later.

May import `common`. Nothing imports the agent: the control machine starts it over SSH. Start reading at `main.py`.
"""
