"""The management API: RabbitMQ's HTTP API over the service layer.

Theory. A route is declared once, by the decorator of its handler, whose docstring is its summary (`http.route.Routes`):
path, method, the right it needs, the keys of its body. `routes.ROUTES` is the list of all of them, from which the
router, the checks of rights, the OpenAPI document and the reference page are made. Handlers are thin: they
translate a request to operations of `broker.administration`, whose results have RabbitMQ's names already, and add
what statistics (`broker.statistics`) know about the object.
"""
