"""Data formats, one file each: what it recognises and how it opens it. Only this folder is searched for them."""
