"""Write the start of an operator folder, from a kernel that a trace shows or from nothing.

What a trace does not tell is never made up: the text says in sentences what is to be decided, and
where a form of the kernel differs from those that were read, its axes stay unknown.
"""

from atrex.scaffold.folder import Scaffold, from_trace, plain

__all__ = ["Scaffold", "from_trace", "plain"]
