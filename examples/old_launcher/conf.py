HOSTS = [
    "root@192.168.100.17",
    "root@192.168.100.18",
]

"""
workspace configuration
"""
# where jobs live on every node
ROOT_DIR = "/home/paddle"

"""
network configuration
"""
# the interface of the pservers
PADDLE_NIC = "eth0"
# their first port
PADDLE_PORT = 7164
# ports of each for dense parameters
PADDLE_PORTS_NUM = 2
# and for sparse ones
PADDLE_PORTS_NUM_FOR_SPARSE = 2
# whether trainers use GPUs
PADDLE_USE_GPU = "False"

# for all processes of the job
LD_LIBRARY_PATH = "/usr/local/cuda/lib64:/usr/lib64"
