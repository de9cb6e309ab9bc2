"""Figures of a node."""

from leveret.broker.statistics.node_figures import process_figures


def test_the_process_is_looked_at():
    """Memory, descriptors and processor time are those of this process."""
    process = process_figures()

    assert process.rss > 1_000_000
    assert 3 <= process.open_files < process.max_files
    assert process.user_seconds > 0
