"""HTTP requests answered in steps: routes, rights, lists, errors, and the driver for aiohttp.

Theory. `dispatch.answer` is a generator that yields after each small piece of work, and what it needs of the outside
(a read from disk, the next commit, a callback); the driver `server` runs it beside clients, a few requests at once,
and writes the pieces of the response. So everything but the driver is pure, and tests need no sockets. The routes and
their handlers are in `broker.management`.
"""
