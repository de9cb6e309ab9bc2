"""The product that a broker says it is."""

from collections.abc import Mapping

import msgspec


class Product(msgspec.Struct, frozen=True):
    """Product and version of the broker, as it reports them; empty if it reports none."""

    product: str
    version: str


def product_of(properties: Mapping[str, object]) -> Product:
    """Return what the broker is; Leveret's product and version are RabbitMQ's, whose behaviour it has."""
    if "leveret_version" in properties:
        return Product("Leveret", str(properties["leveret_version"]))
    return Product(str(properties.get("product", "")), str(properties.get("version", "")))
