"""Everything that asks or tells DVC."""
