"""Setting files turned into typed values."""
