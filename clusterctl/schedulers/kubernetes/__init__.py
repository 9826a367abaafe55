"""Kubernetes: pods as nodes, and the StatefulSet that `submit` makes of a job.

May import `config` and `errors`. Start reading at `pods.py`.
"""
