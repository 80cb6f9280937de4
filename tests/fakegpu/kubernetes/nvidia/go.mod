module gpuyard/tests/nvidia-device-plugin

go 1.24.0

require github.com/NVIDIA/k8s-device-plugin v0.17.4
