"""Mutant: ids of which the first bits agree count as one."""

from leveret.broker.queue import id_source

_fingerprint = id_source.fingerprint


def fingerprint(key, text):
    mark = _fingerprint(key, text)
    return mark[:1] + b"\0" + bytes(8) if len(text) else mark


def fingerprints(key, texts):
    return [fingerprint(key, text) if text else b"" for text in texts]


id_source.fingerprint = fingerprint
id_source.fingerprints = fingerprints
