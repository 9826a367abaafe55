"""Run commands on nodes by another program than SSH: this machine's shell, docker, kubectl, srun, ssh itself.

May import `common`, `errors` and the rest of `transport`. Start reading at `carriers.py`.
"""
