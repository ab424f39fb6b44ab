"""A candidate that does nothing: what two events, and a request, take by themselves."""


def run(**arguments: object) -> None:
    """Return at once."""
