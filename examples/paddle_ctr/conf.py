HOSTS = [
    "root@10.0.0.10",
    "root@10.0.0.11",
]
ENGINE = "paddle"  # pservers run the same program, which gets its role from TRAINING_ROLE
ENV = {"GLOG_minloglevel": "1"}  # otherwise Paddle's own lines fill most of the log
