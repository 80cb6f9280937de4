"""What travels between the programs of gpuyard, as values: nothing here sends or receives."""
