"""A publisher that is promised verdicts."""


class Publisher:
    """Notes the verdicts in their order: `ack` or `nack`, and the number of the publish."""

    def __init__(self) -> None:
        self.outcomes: list[tuple[str, int]] = []

    def accepted(self, seq_no: int) -> None:
        self.outcomes.append(("ack", seq_no))

    def refused(self, seq_no: int) -> None:
        self.outcomes.append(("nack", seq_no))
