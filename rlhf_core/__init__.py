"""The library of nouns: data, rewards, optimisation and evaluation for RLHF reward design."""
