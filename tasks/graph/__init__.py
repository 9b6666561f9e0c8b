"""The graph of stages that rows, reward models, scales and seeds come to."""
