"""What is asked of CUDA itself, for all frameworks: which GPUs there are, and copies to and from them."""
