"""Values: quantities, devices, nodes, queues, jobs, snapshot, plan, reasons. Imports nothing but msgspec."""
