import mmap
import re
from pathlib import Path

from leveret.storage.store.mapped_memory import Mapping, file_octets


def counted(path: Path) -> int:
    """Octets of a file's map that count as memory of this process."""
    found = re.search(
        rf"{re.escape(str(path))}\n.*?Rss: +(\d+) kB", Path("/proc/self/smaps").read_text(), re.DOTALL
    )
    return int(found[1]) * 1024


def test_what_is_given_back_is_counted_no_more_and_still_there(tmp_path):
    """The map of a file stops counting as memory, keeps its contents, and counts again when it is used."""
    path = tmp_path / "data.mdb"
    size = 8 << 20
    path.write_bytes(b"x" * size)
    with path.open("rb") as file, mmap.mmap(file.fileno(), size, prot=mmap.PROT_READ) as octets:
        mapping = Mapping(path)
        assert size == octets[:].count(b"x")
        assert size == counted(path)
        assert file_octets() >= size
        mapping.give_back()
        assert 0 == counted(path)
        assert b"xx" == octets[size // 2 : size // 2 + 2]
        assert 0 < counted(path) < size


def test_a_file_that_is_not_mapped_is_left_alone(tmp_path):
    """A file without a mapping is left alone."""
    Mapping(tmp_path / "other").give_back()
