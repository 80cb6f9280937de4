"""The KAI demo: queues of departments and projects on four real nodes, told from the scheduler's own decisions."""
