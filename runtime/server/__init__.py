"""The daemon over HTTP: it keeps models in memory and serves the APIs that clients already use.

    requests -> app (guards, endpoints) -> generation -> a model's service

An endpoint translates a request of its API into options, and the generated events back into its API. All
endpoints share the same generation. Finding and loading models is behind the protocol `models.Models`.
"""
