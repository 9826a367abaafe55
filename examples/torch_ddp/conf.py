HOSTS = [
    "root@10.0.0.10",
    "root@10.0.0.11",
    "root@10.0.0.12",
]
ENGINE = "torch"
TRAINERS_PER_NODE = 1  # processes per node, like torchrun's --nproc-per-node
