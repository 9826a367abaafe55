"""`clusterctl-rank`: the ranks of an mpirun as the nodes and trainers of a run. Start reading at `main.py`.

May import `cluster`, `common`, `config`, `errors`, `inventory` and `launch`. Only the first rank loads more than
`common`, in `control.py`.
"""
