"""The core: a snapshot in, a plan out. Start reading at `cycle.py`."""
