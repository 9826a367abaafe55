"""One module per command: it runs the stages in order and prints their results.

May import the stages and the rest of `cli`. Start reading at `start.py`.
"""
