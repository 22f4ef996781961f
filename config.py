"""Read by pyinfra before anything else: mistakes that it would not explain by itself."""

from operations.connection import explain_failures, refuse_empty_runs
from sparkwright.plan import check_syntax

check_syntax()
explain_failures()
refuse_empty_runs()
