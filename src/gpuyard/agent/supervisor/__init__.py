"""The supervisor of one task: a small program that outlives the agent, and that the task cannot outlive.

Place in the flow: process_runtime ─folder of the attempt─▶ **supervisor** ─▶ the task's command. The two talk through
files of that folder only, so each may start, end or be updated without the other; whoever has news knocks at a pipe.

    nursery ─fork─▶ guard ─fork─▶ task ─fork─▶ the command
                      └── processes, cell, lease, log, files: what they are made of

The program imports nothing else of gpuyard and little of Python, so that each of its processes stays small and starts
at once. It is compiled into the agent's home as a whole and runs from there. It is a program of its own, so it has the
machine's clock for itself; that clock counts the time the machine slept (CLOCK_BOOTTIME), as a lease does.

Invariants: the command is started at most once, ever (`started` is made, for good, before it). Nothing that descends
from the command is alive when an ending is written. Unless the lease is renewed, nothing is alive when it is over.
"""
