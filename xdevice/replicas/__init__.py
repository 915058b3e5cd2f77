"""One model on several devices of one process: splitting and gathering batches, replicating models, and summing
gradients."""
