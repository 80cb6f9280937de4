module gpuyard/testbed/mpi-operator

go 1.24.0

require github.com/kubeflow/mpi-operator v0.6.0
