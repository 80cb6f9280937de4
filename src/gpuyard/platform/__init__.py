"""The machine underneath: clock, sleep, processes. The only place that may touch them."""
