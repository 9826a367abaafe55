"""The hosts of an Open MPI hostfile.

May import `config` and `errors`. Start reading at `hostfile.py`.
"""
