#!/bin/sh
# The old command line. Only its beginning is new: it was `python paddle.py`.
clusterctl start \
  --job_dispatch_package="${PATH_TO_LOCAL_WORKSPACE:-workspace}" \
  --dot_period=10 \
  --ports_num_for_sparse=2 \
  --log_period=50 \
  --num_passes=5 \
  --trainer_count=2 \
  --saving_period=1 \
  --local=0 \
  --config=./trainer_config.py \
  --save_dir=./output \
  --use_gpu=0
