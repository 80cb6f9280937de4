"""The manager as a daemon: REST, agents, sign-in, audit, metrics."""
