batch_size = 20
learning_rate = 0.1
