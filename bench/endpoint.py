"""The address of a broker, and who logs in there."""

import dataclasses


@dataclasses.dataclass(frozen=True, slots=True)
class Endpoint:
    """A listener without TLS on this machine, and a user."""

    port: int
    user: str = "guest"
    password: str = "guest"
    vhost: str = "/"

    @property
    def url(self) -> str:
        """Return it as PerfTest takes it."""
        vhost = "" if self.vhost == "/" else f"/{self.vhost}"
        return f"amqp://{self.user}:{self.password}@127.0.0.1:{self.port}{vhost}"

    @property
    def response(self) -> str:
        """Return what a client answers to SASL PLAIN."""
        return f"\0{self.user}\0{self.password}"


def endpoint(place: "int | Endpoint") -> Endpoint:
    """Return the endpoint of the default user at a port, or the endpoint itself."""
    return Endpoint(place) if isinstance(place, int) else place
