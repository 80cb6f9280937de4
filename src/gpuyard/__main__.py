"""`python -m gpuyard` is the command `gpuyard`."""

from gpuyard.cli.main import main

main()
