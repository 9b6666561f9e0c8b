"""Models: loading, the policy adapter, sampling, log-probabilities, reward models and critics."""
