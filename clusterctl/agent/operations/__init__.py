"""What one SSH command does on the node: one module for each group of operations, called by `main.py`.

May import the other folders of `agent` but `dispatch`. Start reading at `start.py`.
"""
