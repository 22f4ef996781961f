"""Read by pyinfra before anything else: mistakes that it would not explain by itself."""

from operations.connection import explain_failures, refuse_empty_runs, refuse_unclear_answers
from operations.planning import plan_before_connecting
from operations.reading import explain_mistakes
from operations.rollout import guard_runs, read_no_source

explain_mistakes()
explain_failures()
plan_before_connecting()
refuse_empty_runs()
refuse_unclear_answers()
guard_runs()
read_no_source()
