"""Reasons for the outcomes that are different, by certificate and column; `*` is any."""

STRICT = "RabbitMQ refuses a name whose type of string is not the one of its standard; OpenSSL reads it."
WEAK = "OpenSSL's security level 2 refuses keys and digests of less than 112 bits."
PURPOSE = "OpenSSL checks what the certificate of a client, or of a CA, is for; Erlang does so only in part."
EDWARDS = "Erlang has these signatures for TLS 1.3 only."
LOG = "RabbitMQ's log shows each octet of UTF-8 as a character; the name is the same."
ESCAPED = "Our log escapes what is no printable character, and cuts long names; the name is the same."
NO_USER = "RabbitMQ takes an empty name for the name of a user; there is none, and there can be none here."

EXPLAINED: dict[tuple[str, str], str] = {
    ("empty subject", "distinguished name"): NO_USER,
    ("empty common name", "common name"): NO_USER,
    ("names in UTF-8", "common name"): LOG,
    ("name as BMPString", "common name"): LOG,
    ("other name in UTF-8", "other name"): LOG,
    ("name as IA5String", "*"): STRICT,
    ("every kind of name", "*"): STRICT,
    ("control characters", "common name"): ESCAPED,
    ("NUL in the name", "common name"): ESCAPED,
    ("long common name", "*"): ESCAPED,
    ("long subject", "distinguished name"): ESCAPED,
    (
        "addresses",
        "address",
    ): "RabbitMQ takes the four octets of the address for a name; here it is its text.",
    ("key encipherment only", "*"): PURPOSE,
    ("intermediate is no CA", "*"): PURPOSE,
    ("RSA 1024", "*"): WEAK,
    ("signed with SHA-1", "*"): WEAK,
    ("Ed25519", "TLS 1.2"): EDWARDS,
    ("Ed448", "TLS 1.2"): EDWARDS,
}
