"""Where plans are carried out: one small port, and an implementation for each kind of cluster."""
