"""Mutant: ids of which the first bits agree count as one."""

from leveret.broker.queue import deduplication

_fingerprint = deduplication.fingerprint


def fingerprint(key, text):
    mark = _fingerprint(key, text)
    return mark[:1] + b"\0" + bytes(8) if len(text) else mark


def fingerprints(key, texts):
    return [fingerprint(key, text) if text else b"" for text in texts]


deduplication.fingerprint = fingerprint
deduplication.fingerprints = fingerprints
