"""The real Kubernetes parts, started and stopped on one machine."""
