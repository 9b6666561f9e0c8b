"""Supervised recipes: SFT, DPO and the training loop that reward models share."""
