"""A cluster of our own agents, whose state is an append-only log in a SQL database."""
