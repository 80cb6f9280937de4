"""The command line, one file per noun. No logic lives here: parse, call, show.

Heavy modules (rich, yaml, numpy) are imported inside the commands, so that `gpuyard --help` answers at once.
"""
