"""The error of a condition that cannot be parsed."""


class FilterError(ValueError):
    """A condition is not in the language of `MessageFilter`.

    Args:
        reason: the problem.
        at: position in the text, from 0.

    Attributes:
        column: the column of the text, from 1.

    """

    def __init__(self, reason: str, at: int) -> None:
        self.column = at + 1
        super().__init__(f"column {self.column}: {reason}")
