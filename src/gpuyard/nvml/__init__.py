"""The GPUs of a machine, as the driver's library shows them."""
