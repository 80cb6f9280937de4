"""Kubernetes as a world: the API server is the store, pods are the tasks."""
