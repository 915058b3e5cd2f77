"""One model on several devices: splitting, gathering, replicating, reducing; and virtual GPUs to try it on."""
