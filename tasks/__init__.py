"""Pipeline stages: each module is one typed function with a command line."""
