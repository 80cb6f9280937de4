module gpuyard/benchmarks/peers/kai_programs

go 1.24.4

require github.com/NVIDIA/KAI-scheduler v0.12.0
