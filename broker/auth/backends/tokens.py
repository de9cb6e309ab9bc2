"""Tokens of OAuth 2: signed JSON (RFC 7515, 7519), verified with the keys of the issuer. Pure.

The signature is PyJWT's; everything that it leaves to its caller is decided here. The algorithm of a token must be one
of the allowed ones and fit the kind of the key, which never is a symmetric one: so neither `none` nor a public key used
as the secret of an HMAC verifies anything.
"""

import binascii
import json
from base64 import urlsafe_b64decode
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from jwt import PyJWK

MOST_OCTETS: Final = 16 * 1024  # maximum length of a token
MOST_KEYS: Final = 100  # maximum number of keys of an issuer; further ones are not used
_LATEST: Final = 2**53  # last time that a token may name, in epoch seconds: JSON is sure of numbers up to it
_PARTS: Final = 3

ALGORITHMS: Final[Mapping[str, str]] = {  # the algorithms that can be allowed, and the kind of key of each
    **dict.fromkeys(("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"), "RSA"),
    **dict.fromkeys(("ES256", "ES384", "ES512"), "EC"),
    "EdDSA": "OKP",
}
_CURVES: Final = {"ES256": "P-256", "ES384": "P-384", "ES512": "P-521"}


class TokenError(Exception):
    """A token is not valid; the text says why, without the token."""


class UnknownKeyError(TokenError):
    """The key of a token is not among those that are known: the issuer may have new ones."""


class Key(NamedTuple):
    """A public key."""

    id: str  # its name in tokens; '' if it has none
    kind: str  # RSA, EC or OKP
    algorithm: str  # the only algorithm that it is for; '' for any that fits its kind
    jwk: Mapping[str, Any]  # the key as a JSON Web Key

    def fits(self, algorithm: str) -> bool:
        """Return whether signatures of this algorithm can be those of this key."""
        if ALGORITHMS.get(algorithm) != self.kind or self.algorithm not in {"", algorithm}:
            return False
        return algorithm not in _CURVES or self.jwk.get("crv") == _CURVES[algorithm]


class Rules(NamedTuple):
    """Rules for tokens: allowed algorithms, the issuer ('' for any), the audience, and whether they must expire.

    The audience of a token must contain exactly one of the names; None for anything.
    """

    algorithms: tuple[str, ...]
    audience: frozenset[str] | None
    issuer: str
    require_exp: bool = False


def keys_of(document: Any) -> list[Key]:
    """Return the usable keys of a JSON Web Key Set; raises ValueError if it is none."""
    if not isinstance(document, Mapping) or not isinstance(document.get("keys"), list):
        raise ValueError("it has no list of keys")  # noqa: TRY004 - for what is wrong in a document
    found = []
    for jwk in document["keys"][:MOST_KEYS]:
        if not isinstance(jwk, Mapping) or jwk.get("use", "sig") != "sig" or jwk.get("kty") == "oct":
            continue
        kid, kind, algorithm = (jwk.get(name, "") for name in ("kid", "kty", "alg"))
        if isinstance(kid, str) and isinstance(algorithm, str) and kind in ALGORITHMS.values():
            found.append(Key(kid, kind, algorithm, dict(jwk)))
    return found


def key_of_pem(name: str, octets: bytes) -> Key:
    """Return a public key in a PEM file; raises ValueError if there is none of a supported kind."""
    from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa  # noqa: PLC0415 - slow to load
    from cryptography.hazmat.primitives.serialization import load_pem_public_key  # noqa: PLC0415
    from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm  # noqa: PLC0415

    public = load_pem_public_key(octets)
    match public:
        case rsa.RSAPublicKey():
            jwk = RSAAlgorithm.to_jwk(public, as_dict=True)
        case ec.EllipticCurvePublicKey():
            jwk = ECAlgorithm.to_jwk(public, as_dict=True)
        case ed25519.Ed25519PublicKey():
            jwk = OKPAlgorithm.to_jwk(public, as_dict=True)
        case _:
            raise ValueError("its kind of key is not supported")
    return Key(name, jwk["kty"], "", jwk)


def verified(token: str, keys: Iterable[Key], default_key: str, rules: Rules, now: float) -> dict[str, Any]:
    """Return the claims of a token; raises TokenError if it is not valid, UnknownKeyError if its key is not known.

    `default_key` is the name of the key of tokens that name none, '' to try all that fit; `now` is seconds since the
    epoch.
    """
    if len(token) > MOST_OCTETS or not token.isascii():
        raise TokenError("it is too long, or no token")
    parts = token.split(".")
    if len(parts) != _PARTS:
        raise TokenError("it does not have three parts")
    header, claims = _object(parts[0]), _object(parts[1])
    if not all(isinstance(header.get(name, ""), str) for name in ("alg", "kid", "typ")) or "crit" in header:
        raise TokenError("its header is not supported")
    algorithm, kid = header.get("alg", ""), header.get("kid", "") or default_key
    if algorithm not in rules.algorithms or algorithm not in ALGORITHMS:
        raise TokenError(f"its algorithm {algorithm[:20]!r} is not allowed")
    fitting = [key for key in keys if key.fits(algorithm) and (not kid or key.id == kid)]
    if not fitting:
        raise UnknownKeyError("its key is not known")
    if not any(_is_signed(token, key, algorithm) for key in fitting):
        raise TokenError("its signature is wrong")
    _check_times(claims, now, require_exp=rules.require_exp)
    _check_addressee(claims, rules)
    return claims


def _object(part: str) -> dict[str, Any]:
    """Return an object of a token; raises TokenError, also if it names a claim twice."""
    try:
        octets = urlsafe_b64decode(part + "=" * (-len(part) % 4))
        found = json.loads(octets.decode(), object_pairs_hook=_unambiguous)
    except (binascii.Error, ValueError, RecursionError):
        raise TokenError("it is malformed") from None
    if not isinstance(found, dict):
        raise TokenError("it is malformed")
    return found


def _unambiguous(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError
    return found


def _is_signed(token: str, key: Key, algorithm: str) -> bool:
    import jwt  # noqa: PLC0415 - slow to load, and an extra

    try:
        public: PyJWK = jwt.PyJWK(dict(key.jwk), algorithm=algorithm)
        jwt.api_jws.PyJWS(algorithms=[algorithm]).decode_complete(token, public.key, algorithms=[algorithm])
    except (jwt.PyJWTError, ValueError, TypeError):
        return False
    return True


def _check_times(claims: Mapping[str, Any], now: float, *, require_exp: bool) -> None:
    if require_exp and "exp" not in claims:
        raise TokenError("it never expires")
    for name in ("exp", "nbf"):
        value = claims.get(name, 0)
        if (
            isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= _LATEST
        ):  # or NaN
            raise TokenError(f"its claim {name} is no time")
    if "exp" in claims and now >= claims["exp"]:
        raise TokenError("it has expired")
    if now < claims.get("nbf", now):
        raise TokenError("it is not valid yet")


def audience_of(claims: Mapping[str, Any]) -> list[Any]:
    """Return what the audience of a token contains."""
    audience = claims.get("aud")
    found = audience.split() if isinstance(audience, str) else audience
    return found if isinstance(found, list) else []


def _check_addressee(claims: Mapping[str, Any], rules: Rules) -> None:
    if rules.issuer and claims.get("iss") != rules.issuer:
        raise TokenError("its issuer is another one")
    if rules.audience is None:
        return
    named = {each for each in audience_of(claims) if isinstance(each, str)} & rules.audience
    if not named:
        raise TokenError("its audience is another one")
    if len(named) > 1:
        raise TokenError("its audience has several of the resource servers")
