"""The judge: what decides that a result is real, and the worker that it trusts with nothing."""
