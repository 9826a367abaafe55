"""The program on the node, shipped with `common`, `transfer` and `runtime`: standard library only, Python 3.9 or later.

May import `common` and `transfer`. Nothing imports the agent: the control machine starts it over SSH. Start
reading at `main.py`.
"""
