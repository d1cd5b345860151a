"""HTTP servers: listening on an address, and serving within limits.

`http.server.Server(app, **options).run(sockets=[listening])` is uvicorn for `serve` and the dashboard. Clients have
time limits for headers, bodies and reading. When there are too many connections, a new one replaces the one that has
kept the server waiting longest.
"""
