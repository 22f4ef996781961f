"""Read by pyinfra before anything else: mistakes that it would not explain by itself."""

from operations.connection import explain_failures, refuse_empty_runs
from operations.reading import explain_mistakes

explain_mistakes()
explain_failures()
refuse_empty_runs()
