"""`python -m leveret` is the command `leveret`."""

from leveret.broker.cli.entry import main

if __name__ == "__main__":
    main()
