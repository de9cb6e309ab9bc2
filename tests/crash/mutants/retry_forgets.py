"""Mutant: a retried message does not know how often it was retried."""

from leveret.broker.transfer import retry


def counted(message, _retries):
    return message


retry.counted = counted
