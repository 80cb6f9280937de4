"""The production loop: observe, plan, verify, record, act; on any world."""
