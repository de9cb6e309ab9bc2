import pytest
from size.run import Size, recorded, size_of, sizes

MOST_GROWTH = 1.1


def test_code_is_what_is_left_of_docstrings_comments_and_blank_lines():
    """A module's lines of code are its lines without docstrings, comments on lines of their own, and blank lines."""
    text = '"""About.\n\nMore.\n"""\n\n# why\nx = "# not a comment"  # beside\n\n\ndef f():\n    """Do."""\n    return 1\n'

    assert (12, 3) == size_of(text)


@pytest.mark.parametrize("name", sorted(recorded()))
def test_a_folder_grows_only_with_its_line(name):
    """A folder has at most a tenth more lines, or a tenth and two more files, than its line in `sizes.toml` says."""
    found, line = sizes()[name], recorded().get(name, Size(0, 0, 0))

    assert found.lines <= line.lines * MOST_GROWTH, (
        "make size ARGS=--write, and say in the commit what it is for"
    )
    assert found.files <= line.files * MOST_GROWTH + 2


def test_each_line_is_of_a_folder():
    """The table names no folder that is gone."""
    assert recorded().keys() == sizes().keys()
