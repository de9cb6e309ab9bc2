"""Writes the pages, and the declaration of the export's tables for readers elsewhere: `make docs`."""

from docs.generate import FILES

if __name__ == "__main__":
    for path, render in FILES.items():
        path.write_text(render(), encoding="utf-8")
