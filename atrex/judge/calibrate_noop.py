"""A Python candidate that does nothing: its time is the floor of the Python workers."""


def run(**arguments: object) -> None:
    """Return at once."""
