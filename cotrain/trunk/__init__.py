"""Frozen pretrained trunks: how they run, and the bank of their features."""
