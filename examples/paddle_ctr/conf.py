HOSTS = [
    "root@10.0.0.10",
    "root@10.0.0.11",
]
ENGINE = "paddle"  # pservers run the same program, which knows its role by TRAINING_ROLE
ENV = {"GLOG_minloglevel": "1"}  # or Paddle's own lines are most of the log
