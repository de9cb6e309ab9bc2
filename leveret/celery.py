"""Unique Celery tasks: a task that is queued already is not queued once more.

    from leveret.celery import UniqueTask

    @app.task(base=UniqueTask, acks_late=True)
    def sync(account): ...

The task gives each publish a key. Its queue drops repeats: it has the argument `x-deduplicate: header:task-key`
(docs/howto/take-each-message-once.md).

The task has no time of its own: how long a key is known is a setting of the queue (`x-deduplicate-for`). A task could
only have the time as a part of its key, in slices: two publishes around the end of a slice would both be taken. Tasks
that need different times need different queues.
"""

import inspect
from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Any, Final

try:
    from celery import Task
    from kombu.utils.json import dumps
except ImportError as error:
    raise ImportError(f"{error}; pip install celery") from error

KEY_HEADER: Final = "task-key"
"""The header with the key of a task: the queue's `x-deduplicate` is `header:` and this name."""


class UniqueTask(Task):  # type: ignore[misc] # Celery has no types
    """A task whose publishes have a key, by which its queue drops repeats.

    A retry (`self.retry`) has no key: its queue would drop it as a repeat of the publish that is still at work. A
    publish that has the header already keeps it. `app.send_task` knows no task, and sets no key.
    """

    def unique_key(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
        """Return what tells a publish from others of this task: by default a hash of its arguments and their defaults.

        Override it, or give a function as an option: `@app.task(base=UniqueTask, unique_key=by_account)`.

        Args:
            args: the positional arguments of the task.
            kwargs: its other arguments.

        Raises:
            TypeError: an argument is nothing that Celery can write as JSON.

        """
        arguments: object = [args, kwargs]
        if self.typing:  # the arguments fit
            bound = inspect.signature(self.run).bind(*args, **kwargs)
            bound.apply_defaults()
            arguments = bound.arguments
        return sha256(dumps(arguments, sort_keys=True).encode()).hexdigest()  # type: ignore[no-untyped-call] # kombu has no types

    def apply_async(
        self,
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        *others: Any,
        **options: Any,
    ) -> Any:
        """Publish the task, as Celery's `Task.apply_async` does, with its key.

        The result of a repeat never gets a value, since its queue drops it.

        Raises:
            TypeError: the arguments are not those of the task, or have no key.

        """
        headers = dict(options.pop("headers", None) or {})
        if options.get("retries"):
            headers.pop(KEY_HEADER, None)  # Celery copies the headers of the first publish
        elif KEY_HEADER not in headers:
            headers[KEY_HEADER] = f"{self.name}:{self.unique_key(args or (), kwargs or {})}"
        return super().apply_async(args, kwargs, *others, headers=headers, **options)
