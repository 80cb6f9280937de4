"""The clock and the processes of the machine we run on: the only place that touches them."""
