"""What can be swapped: which step runs, who goes next, which node and which device is best."""
