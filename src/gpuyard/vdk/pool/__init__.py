"""The books of machines that belong to somebody else's platform, and the plans that rearrange them."""
