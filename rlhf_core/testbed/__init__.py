"""The embedded world with known rewards."""
