"""Read by pyinfra before anything else: what to say when a host can't be reached."""

from operations.connection import explain_failures

explain_failures()
