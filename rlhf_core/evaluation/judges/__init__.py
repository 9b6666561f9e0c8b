"""Judges behind one interface: requests in, verdict text out, parsed strictly elsewhere."""
