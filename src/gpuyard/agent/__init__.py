"""The part of gpuyard on each machine: its GPUs, its tasks, and the stream to the manager."""
