"""Measurements of gpuyard, each with its target. Run one with `python -m benchmarks.core`."""
