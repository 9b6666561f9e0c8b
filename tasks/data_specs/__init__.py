"""Kinds of data sets, as data specs state them."""
