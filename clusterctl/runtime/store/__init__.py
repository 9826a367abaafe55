"""A lane's tables in memory: dense runs, sparse rows, their index, eviction.

May import `modes` and `table`; knows no sockets and no files. Start reading at `factory.py`.
"""
