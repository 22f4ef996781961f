"""Thin pyinfra facts: one command out, one typed object back."""
