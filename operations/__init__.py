"""Thin pyinfra operations, composed from the domain's decisions; each is idempotent."""
