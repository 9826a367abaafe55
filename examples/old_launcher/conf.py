HOSTS = [
    "root@192.168.100.17",
    "root@192.168.100.18",
]

"""
workspace configuration
"""
# the directory for jobs on every node
ROOT_DIR = "/home/paddle"

"""
network configuration
"""
# network interface of the pservers
PADDLE_NIC = "eth0"
# first port of the pservers
PADDLE_PORT = 7164
# number of ports per pserver for dense parameters
PADDLE_PORTS_NUM = 2
# number of ports per pserver for sparse parameters
PADDLE_PORTS_NUM_FOR_SPARSE = 2
# use GPUs in trainers
PADDLE_USE_GPU = "False"

# environment of all processes of the job
LD_LIBRARY_PATH = "/usr/local/cuda/lib64:/usr/lib64"
