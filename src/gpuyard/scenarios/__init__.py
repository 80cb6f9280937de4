"""Situations with a known outcome: read, played and judged by the production scheduler."""
