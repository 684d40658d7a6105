"""dispatcher: a matrix of training runs over the GPUs of a few hosts that share one directory."""
