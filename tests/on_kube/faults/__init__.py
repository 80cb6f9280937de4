"""The scheduler through faults: one cluster for all tests of this folder, which goes with the last of them."""
