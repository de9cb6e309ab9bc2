"""``python -m broker`` is the command ``leveret``."""

from broker.cli import main

if __name__ == "__main__":
    main()
