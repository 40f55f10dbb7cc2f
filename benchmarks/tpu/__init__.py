"""What the TPU's compiler makes of kernels and rounds, without a TPU."""
