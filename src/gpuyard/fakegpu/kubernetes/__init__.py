"""The fake GPUs on real Kubernetes nodes."""
