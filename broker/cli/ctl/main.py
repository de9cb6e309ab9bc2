"""The command `leveret ctl`."""

from leveret.broker.cli.ctl import (
    access,
    cluster,
    guide,
    health,
    limits,
    lists,
    one_node,
    operations,
    policies,
    reporting,
    shovels,
    status,
)
from leveret.broker.cli.ctl.command import CtlGroup, common_options

MODULES = (
    access,
    cluster,
    guide,
    health,
    limits,
    lists,
    one_node,
    operations,
    policies,
    reporting,
    shovels,
    status,
)
"""Each registers its commands when it is imported."""

ctl = CtlGroup(
    "ctl",
    params=common_options(),
    help="Look at and change a running broker, with the commands of rabbitmqctl and rabbitmq-diagnostics.",
    short_help="Look at and change a running broker.",
    context_settings={"help_option_names": ["-h", "--help"]},
)
