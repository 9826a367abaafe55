HOSTS = [
    "root@10.0.0.10",
    "root@10.0.0.11",
    "root@10.0.0.12",
]
ENGINE = "torch"
# More processes on a node, like torchrun's --nproc-per-node: Host("root@10.0.0.10", trainers=2)
