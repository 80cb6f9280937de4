"""Other schedulers on the same clusters, in the same run: `python -m benchmarks.peers.run` (or `make bench-peers`)."""
