"""What has to be closed, as a context manager."""

from __future__ import annotations

from typing import Self


class Closing:
    """Closed at the end of a `with` block, however that ends."""

    def close(self) -> None:
        """Give back what it holds."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
