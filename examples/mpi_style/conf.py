HOSTS = [
    "root@10.0.0.10",
    "root@10.0.0.11",
    "root@10.0.0.12",
]
ENGINE = "mpi"
