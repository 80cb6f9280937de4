"""The Kubernetes API server as a client sees it: access, requests, and objects that are followed."""
