"""Programs for a Kubernetes cluster: the scheduler, the part on every node, and questions about both."""
