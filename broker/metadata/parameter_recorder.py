"""Persistent global parameters; see `broker.metadata.recorder`."""

from typing import Any

from leveret.broker.metadata.recorder import Definitions, octets, to_json
from leveret.broker.vhost.parameters import GlobalParameters
from leveret.storage.store.metadata_rows import GlobalParameterRow, relation_key


class StoredGlobalParameters(GlobalParameters):
    """Global parameters that are stored when they change.

    Args:
        definitions: writes the rows.

    """

    __slots__ = ("_definitions",)

    def __init__(self, definitions: Definitions) -> None:
        super().__init__()
        self._definitions = definitions

    def set(self, name: str, value: Any) -> None:
        """Set a value, of any type."""
        super().set(name, value)
        self._definitions.put(GlobalParameterRow(octets(name), to_json(value)))
        self._definitions.tell("parameter_set", "", name, "global", value)

    def clear(self, name: str) -> None:
        """Remove a value; raises ParameterError if there is none."""
        super().clear(name)
        self._definitions.delete(relation_key(GlobalParameterRow.kind, octets(name)))
        self._definitions.tell("parameter_set", "", name, "global")  # without a value, as by RabbitMQ
