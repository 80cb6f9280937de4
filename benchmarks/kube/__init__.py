"""gpuyard's Kubernetes scheduler beside kube-scheduler and KAI, on one testbed: `python -m benchmarks.kube.run`."""
