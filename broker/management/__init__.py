"""The management API: RabbitMQ's HTTP API over the service layer.

Theory. `routes.ROUTES` is the only list of what exists: paths, methods, the rights they need, their handlers. The
router, the checks of rights, the OpenAPI document and the reference page are made from it. Handlers are thin: they
translate a request to operations of `broker.administration`, whose results have RabbitMQ's names already, and add
what statistics (`broker.statistics`) know about the object.
"""
