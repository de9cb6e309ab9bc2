"""Tries the installed Leveret: the command, a broker with a client, and the pytest plugin. `.ci/run` does, with each Python.

It is run in a folder from which the sources are not found.
"""

import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import pika

import leveret

TEST = """
def test_vhost(leveret):
    leveret.declare("orders")
    leveret.publish("", "orders", "one")
    assert [b"one"] == [message.body for message in leveret.queue("orders").messages]
"""


def main() -> None:
    """Try everything; an error or a failed command ends the program."""
    checkout = Path(__file__).resolve().parents[2]
    if Path(leveret.__file__).is_relative_to(checkout / "leveret"):
        sys.exit("this is the checkout, not an installed Leveret")
    with TemporaryDirectory() as folder:
        with (
            leveret.Broker(data_dir=f"{folder}/data") as broker,
            pika.BlockingConnection(pika.URLParameters(broker.url)) as connection,
        ):
            channel = connection.channel()
            channel.confirm_delivery()
            channel.queue_declare("orders", durable=True)
            channel.basic_publish("", "orders", b"one", pika.BasicProperties(delivery_mode=2))
        test = Path(folder, "test_vhost.py")
        test.write_text(TEST, encoding="utf-8")
        for words in (
            ("leveret", "--version"),
            ("leveret", "store", "check", "--data-dir", f"{folder}/data"),
            ("pytest", "-q", "-p", "no:cacheprovider", "-W", "ignore", str(test)),
        ):
            subprocess.run([sys.executable, "-m", *words], cwd=folder, check=True, timeout=120)


if __name__ == "__main__":
    main()
