"""A trainer's own state: when it is taken, its files on the node and in cuts, and which of them a trainer loads.

May import `checkpoint`, `cuts`, `environment`, `modes` and `supervisor_socket`; knows nothing of torch, pservers or
trainers. Start reading at `keeper.py`.
"""
