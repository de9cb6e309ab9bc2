"""The body of a message is dropped before its commit once the first of its copies is settled."""

from leveret.storage.journal.journal import Journal

_put_body = Journal._put_body


def put_body(journal, message, content, changes):
    if message.open_copies == message.copies:
        _put_body(journal, message, content, changes)


Journal._put_body = put_body
