"""Values: quantities, devices, nodes, queues, jobs, snapshot, plan, reasons. Imports nothing but msgspec.

Values are trees: none can come to contain itself, so the garbage collector need not look at them (`gc=False`).
"""
