"""Command lines of `rabbitmqadmin-ng`, which comes with Debian's RabbitMQ 4.3 (`make peer-4.3`), and what they print.

What RabbitMQ 4.3.6 prints is kept beside this file; with the URL of its management API it is recorded anew:

    python tests/clients/rabbitmqadmin_ng.py HTTP_URL > tests/clients/rabbitmqadmin_ng.txt
"""

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from textwrap import dedent
from urllib.parse import urlsplit

sys.path.append(str(Path(__file__).resolve().parents[1]))

from clients.rabbitmqadmin_lines import SECONDS, plain
from conformance.peers import PEERS
from samples.certificates import Authority

PEER = PEERS["4.3"]
RECORDED = Path(__file__).with_name("rabbitmqadmin_ng.txt")
LINES = """
    vhosts declare --name v1
    vhosts declare --name v1
    vhosts declare --name v2 --default-queue-type quorum --description second
    declare user --name ann --password secret --tags management
    declare user --name bob --password-hash 3C+HLqzwCZid64laFJT5tq6dENkW0u7fDfzeHbckojVsNToC
    declare user --name eve
    -V v1 declare permissions --username guest --configure .* --write .* --read .*
    -V v1 declare permissions --username ann --configure ^a --write .* --read .*
    -V v1 declare permissions --username nobody --configure .* --write .* --read .*
    -V v1 declare permissions --username ann --configure ( --write .* --read .*
    -V v1 declare exchange --name x1 --type topic --durable true
    -V v1 declare exchange --name x1 --type fanout --durable true
    -V v1 declare exchange --name x2 --type x-local-random --durable true
    -V v1 declare exchange --name x3 --type direct --arguments {"alternate-exchange":"x1"}
    -V v1 declare exchange --name x4 --type x-nonesuch
    -V v1 declare exchange --name amq.x5 --type direct
    -V v1 declare queue --name q1 --durable true
    -V v1 declare queue --name q1 --durable false
    -V v1 declare queue --name q2 --durable true --arguments {"x-max-length":2,"x-dead-letter-exchange":"x1"}
    -V v1 declare queue --name q3 --type quorum --durable true --arguments {"x-delivery-limit":-1}
    -V v1 declare queue --name q4 --durable true --arguments {"x-message-ttl":"soon"}
    -V v1 declare queue --name q5 --durable true --arguments {"x-queue-version":1}
    -V v1 declare queue --name q6 --durable true --arguments {"x-queue-master-locator":"client-local"}
    -V v1 declare queue --name q7 --type quorum --durable true --arguments {"x-delayed-retry-type":"all","x-delayed-retry-min":1000}
    -V v2 declare permissions --username guest --configure .* --write .* --read .*
    -V v1 declare binding --source x1 --destination-type queue --destination q1 --routing-key a.#
    -V v1 declare binding --source x1 --destination-type queue --destination q2 --routing-key b --arguments {"k":1}
    -V v1 declare binding --source x1 --destination-type exchange --destination x3 --routing-key c
    -V v1 declare binding --source x1 --destination-type queue --destination q1 --routing-key #.a.#.b.#
    -V v1 declare binding --source x1 --destination-type queue --destination nowhere --routing-key c
    -V v1 declare policy --name p1 --pattern ^q --apply-to classic_queues --priority 3 --definition {"max-length":10}
    -V v1 declare policy --name p2 --pattern ^q --apply-to queues --definition {"nonsense":10}
    -V v1 declare policy --name p3 --pattern ^q --apply-to quorum_queues --definition {"delivery-limit":-1,"delayed-retry-type":"all"}
    -V v1 declare operator_policy --name o1 --pattern ^q --apply-to queues --definition {"max-length":20}
    -V v1 policies declare_override --name p1 --override p1o --apply-to classic_queues --definition {"max-length":11}
    -V v1 policies patch --name p1 --definition {"expires":60000}
    -V v1 policies update_definition --name p1 --definition-key max-length --new-value 12
    -V v1 policies delete_definition_keys --name p1 --definition-keys expires
    -V v1 policies list_matching_object --name q1 --type queues
    -V v1 policies list_conflicting
    -V v1 declare parameter --component unknown --name n --value {}
    -V v1 declare vhost_limit --name max-queues --value 100
    -V v1 declare vhost_limit --name nonsense --value 100
    declare user_limit --user ann --name max-channels --value 5
    -V v1 publish message --exchange x1 --routing-key a.b --payload one
    -V v1 publish message --routing-key q2 --payload two --properties {"delivery_mode":2,"headers":{"h":1}}
    -V v1 publish message --routing-key nowhere --payload three
    -V v1 publish message --exchange nowhere --routing-key q2 --payload x
    -V v1 get messages --queue q1
    -V v1 get messages --queue q2 --count 5 --ack-mode ack_requeue_false
    -V v1 get messages --queue nowhere
    list vhosts
    list users
    list permissions
    -V v1 list exchanges
    -V v1 list bindings
    list policies
    -V v1 list operator_policies
    list parameters
    -V v1 list vhost_limits
    list user_limits
    list connections
    list channels
    list consumers
    list deprecated_features
    list deprecated_features_in_use
    health_check local_alarms
    health_check cluster_wide_alarms
    health_check node_is_quorum_critical
    health_check deprecated_features_in_use
    health_check port_listener --port 1
    health_check protocol_listener --protocol amqp
    vhosts enable_deletion_protection --name v2
    vhosts delete --name v2
    vhosts disable_deletion_protection --name v2
    -V v1 purge queue --name q2
    -V v1 purge queue --name nowhere
    -V v1 delete binding --source x1 --destination-type queue --destination q1 --routing-key a.#
    -V v1 delete binding --source x1 --destination-type queue --destination q1 --routing-key a.#
    -V v1 delete queue --name q1
    -V v1 delete queue --name q1
    -V v1 delete queue --name q1 --idempotently
    -V v1 delete exchange --name x2
    -V v1 delete exchange --name amq.topic
    -V v1 delete policy --name p1
    -V v1 delete operator_policy --name o1
    -V v1 delete parameter --component unknown --name n
    -V v1 delete vhost_limit --name max-queues
    delete user_limit --user ann --name max-channels
    -V v1 delete permissions --username ann
    delete user --name ann
    delete user --name bob
    delete user --name nobody
    vhosts delete_multiple --name-pattern ^v --approve
    list vhosts
"""


def transcript(http_url: str) -> str:
    """Return all lines with what they print against the broker of a URL, and their exit codes if they are not 0."""
    where = urlsplit(http_url)
    words = ("-H", str(where.hostname), "-P", str(where.port), "--non-interactive")
    with tempfile.TemporaryDirectory() as folder:
        # it does not start without an authority, and in the folder of RabbitMQ there is none
        environment = {**os.environ, "SSL_CERT_FILE": str(Authority(Path(folder)).file)}
        command = PEER.inside("rabbitmqadmin", *words)
        return "".join(_printed(command, line, environment) for line in dedent(LINES).strip().splitlines())


def _printed(command: list[str], line: str, environment: dict[str, str]) -> str:
    done = subprocess.run(
        [*command, *line.split(" ")],
        env=environment, capture_output=True, text=True, timeout=SECONDS, check=False,
    )  # fmt: skip
    code = f"exit code {done.returncode}\n" if done.returncode else ""
    shown = re.sub(r"[A-Za-z0-9+/]{48}", "SALTED", plain(done.stdout + done.stderr, {}))
    return f"$ {line}\n{re.sub(' +$', '', shown, flags=re.MULTILINE)}{code}"


if __name__ == "__main__":
    sys.stdout.write(transcript(sys.argv[1]))
