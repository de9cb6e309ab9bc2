"""Mutant: the rows of ids of an exchange, or of a queue, are those of another one, and are not found after a kill."""

from leveret.broker.queue import id_log

_pack_ids = id_log.pack_ids
id_log.pack_ids = lambda line, due, content: _pack_ids(line + 1, due, content)
