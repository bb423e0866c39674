"""Families of backbones, one file each. Only this folder is searched for them."""
