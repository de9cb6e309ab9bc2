"""The command `leveret ctl`: the list of its commands, those of RabbitMQ that it has not, and `help`."""

import difflib
import re
import sys
from collections.abc import Iterator, Sequence

import click

from leveret.broker import COMPATIBLE_VERSION, exit_codes
from leveret.broker.cli.ctl import (  # noqa: F401 - each declares its commands when it is imported
    access,
    cluster,
    definitions,
    health,
    lists,
    operations,
    policies,
    status,
)
from leveret.broker.cli.ctl.command import (
    COMMANDS,
    CtlCommand,
    Session,
    command,
    common_options,
    wrong_arguments,
)
from leveret.broker.cli.ctl.output import UsageError

# -- commands of RabbitMQ that are not there, and what to use instead --------------------------------------------------


ABSENT = {  # commands of RabbitMQ 3.10 and 4.3 that are not there, by what they are about
    "clusters and replicas, which RabbitMQ makes of its nodes": """
        add_member cancel_sync_queue change_cluster_node_type check_if_cluster_has_classic_queue_mirroring_policy
        check_if_new_quorum_queue_replicas_have_finished_initial_sync coordinator_status delete_member discover_peers
        force_boot force_checkpoint force_standalone_khepri_boot grow grow_to_count join_cluster
        list_operator_policies_with_classic_queue_mirroring list_policies_with_classic_queue_mirroring
        metadata_store_status peek quorum_status reclaim_quorum_memory reconcile_vhosts
        remove_classic_queue_mirroring_from_policies rename_cluster_node shrink stream_status sync_queue
        transfer_leadership update_cluster_nodes
    """,
    "the policies of a queue: `leveret explain queue` has them": "list_policies_that_match",
    "statistics, which are metrics (`/metrics`), and the watch over the disk": """
        activate_free_disk_space_monitoring deactivate_free_disk_space_monitoring message_size_stats reset_stats_db
    """,
    "interceptors of channels": "list_channel_interceptors set_channel_interceptor_priorities",
    "Erlang": """
        certificates cipher_suites command_line_arguments consume_event_stream erlang_cookie_hash erlang_cookie_sources
        eval eval_file exec hipe_compile list_ciphers list_hashes list_network_interfaces maybe_stuck observer os_env
        remote_shell resolver_info runtime_thread_stats schema_info tls_versions
    """,
    "encrypted configuration values: `leveret config encrypt` makes them": """
        decode decrypt_conf_value encode encrypt_conf_value
    """,
    "a broker that is stopped or forgets its data while its process runs": "force_reset reset stop_app",
    "maintenance: the image has `rabbitmq-upgrade drain`, `revive`, `post_upgrade`, which do nothing": """
        drain post_upgrade resume_listeners revive suspend_listeners
    """,
    "counts of logins, which the management API has (`/api/auth/attempts`)": """
        disable_auth_attempt_source_tracking enable_auth_attempt_source_tracking list_node_auth_attempt_stats
        reset_node_auth_attempt_metrics
    """,
    "shells and streams of the log": "autocomplete log_tail_stream",
}

_CLEARED = "the {} alarm is cleared by the limit that there was before: `leveret ctl set_{}`"
_SETTINGS = (
    "settings are read at the start, from the file or `leveret serve --set KEY=VALUE`; "
    "`leveret config` lists them"
)
_EXPRESSIONS = (
    (r"rabbit_alarm:set_alarm\b.*\bdisk\b", "`leveret ctl set_disk_free_limit 1000TB` raises the disk alarm"),
    (r"rabbit_alarm:clear_alarm\b.*\bdisk\b", _CLEARED.format("disk", "disk_free_limit 50MB")),
    (
        r"rabbit_alarm:set_alarm\b",
        "`leveret ctl set_vm_memory_high_watermark absolute 1` raises the memory alarm",
    ),
    (
        r"rabbit_alarm:clear_alarm\b|vm_memory_monitor:",
        _CLEARED.format("memory", "vm_memory_high_watermark 0.4"),
    ),
    (r"application:(set|unset)_env\b", _SETTINGS),
    (r"application:get_(all_)?env\b", "`leveret ctl environment` shows the settings in effect"),
)
"""Patterns of Erlang expressions that scripts let `eval` evaluate, and what to use instead; the first one counts."""
_FORGET = "to forget everything, stop the broker and remove its data directory"
INSTEAD = {  # advice by command: what to use instead, and what a script that stops there has left
    "stop_app": "`leveret ctl close_all_connections REASON --global` ends connections, and their exclusive queues; "
    "to stop the broker, end its process (SIGTERM)",
    "reset": _FORGET,
    "force_reset": _FORGET,
    "eval": "`leveret ctl alarms` shows alarms that a script has left: limits set by `set_vm_memory_high_watermark` "
    "and `set_disk_free_limit` stay until they are set again, or the broker starts",
}


def explained(words: Sequence[str]) -> Iterator[str]:
    """Yield lines that say why there is no such command, and what to use instead; none for other names."""
    name, rest = words[0], " ".join(words[1:])
    for subject, names in ABSENT.items():
        if name in names.split():
            yield f"It is one of RabbitMQ's commands that do not exist here, about {subject}. Nothing was changed."
            if name == "eval":
                yield from [text for pattern, text in _EXPRESSIONS if re.search(pattern, rest, re.DOTALL)][:1]
            if name in INSTEAD:
                yield INSTEAD[name]


# -- the group ---------------------------------------------------------------------------------------------------------


class CtlGroup(click.Group):
    """The commands, by groups; names that do not exist end the process with RabbitMQ's exit code."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments; without any, help is printed, which is no error."""
        if not args:
            click.echo(ctx.get_help())
            ctx.exit()
        with wrong_arguments(ctx):
            return super().parse_args(ctx, args)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands."""
        del ctx
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a command; None if there is none of that name."""
        del ctx
        return CtlCommand(cmd_name) if cmd_name in COMMANDS else None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command of the arguments."""
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            click.echo(f"\nCommand '{args[0]}' not found.", err=True)
            if lines := list(explained(args)):
                click.echo("\n".join(lines), err=True)
            elif close := difflib.get_close_matches(args[0], COMMANDS, 1):
                click.echo(f"Did you mean '{close[0]}'?", err=True)
            sys.exit(exit_codes.USAGE)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands by groups."""
        del ctx
        for group, names in groups().items():
            with formatter.section(group):
                formatter.write_dl([(name, CtlCommand(name).get_short_help_str(200)) for name in names])


def groups() -> dict[str, list[str]]:
    """Return the names of the commands by their headings, both in the order of the names."""
    groups: dict[str, list[str]] = {}
    for name in sorted(COMMANDS):
        groups.setdefault(COMMANDS[name].group, []).append(name)
    return groups


ctl = CtlGroup(
    "ctl",
    params=list(common_options()),
    help="Look at and change a running broker, with the commands of rabbitmqctl and rabbitmq-diagnostics.",
    short_help="Look at and change a running broker.",
    context_settings={"help_option_names": ["-h", "--help"]},
)
click.version_option(COMPATIBLE_VERSION, message="%(version)s")(ctl)


@command("Help", "set_policy", name="help")
def show_help(session: Session, name: str | None = None) -> None:
    """Print the list of commands, or what a command does."""
    parent = click.get_current_context().parent
    if name is None:
        session.show(parent.get_help() if parent is not None else "")
    elif name not in COMMANDS:
        raise UsageError(f"there is no command {name}", exit_codes.USAGE)
    else:
        asked = CtlCommand(name)
        session.show(asked.get_help(click.Context(asked, info_name=name, parent=parent)))
