"""One model on several devices of one process: batches are split and gathered, models
replicated, gradients summed."""
