"""Profiles: the settings that follow from `compatibility.profile`, where the user has not set them.

Sources: the release notes of RabbitMQ 4.0 to 4.3, and 4.3.6 itself (docs/compatibility.md has the table).
"""

from collections.abc import Mapping
from typing import Final

from leveret.broker.config.values import Setting

KEY: Final = "compatibility.profile"
PROFILES: Final[Mapping[str, Mapping[str, str]]] = {
    "3.13": {},
    "4.3": {
        "anonymous_login_pass": "guest",
        "anonymous_login_user": "guest",
        "auth_oauth2.require_exp": "true",
        "channel_tx_message_max": "10000",
        "compatibility.claimed_deaths": "replaced",
        "compatibility.consumer_timeout": "4.3",
        "compatibility.delivery_count": "failures",
        "compatibility.frame_min": "8192",
        "compatibility.global_qos": "ignored",
        "compatibility.hash_max_weight": "10000",
        "compatibility.header_numbers": "exact",
        "compatibility.long_delays": "held",
        "compatibility.mandatory_replies": "routed",
        "compatibility.message_properties": "4.3",
        "compatibility.protocol_errors": "4.3",
        "compatibility.queue_arguments": "4.3",
        "compatibility.quorum_delivery_limit": "20",
        "compatibility.quorum_priorities": "strict",
        "compatibility.topic_max_hash": "2",
        "compatibility.transient_nonexcl_queues": "denied",
        "max_message_size": "16MiB",
    },
}
"""Profile → key → value. The profile 3.13 is the keys' own defaults."""


def with_profile(written: list[Setting]) -> list[Setting]:
    """Return the settings behind those of the profile that they choose; a later setting wins."""
    profile = next((each.value for each in reversed(written) if each.key == KEY), "")
    chosen = PROFILES.get(profile, {})  # an unknown one is refused where values are parsed
    return [Setting(key, value, f"{KEY} = {profile}") for key, value in chosen.items()] + written
