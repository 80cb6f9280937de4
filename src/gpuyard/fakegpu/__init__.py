"""Fake GPUs: one workload-driven model of a fleet, and the faces that show it (NVML, nvidia-smi, exporter, labels)."""
