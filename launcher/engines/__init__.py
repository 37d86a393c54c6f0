"""Which engines there are."""
