"""The daemon over HTTP: it keeps models resident and speaks what clients already speak.

    requests -> app (guards, endpoints) -> generation -> a model's service

An endpoint translates one API's request into options and its events back; what generates is the same for
all of them. Nothing here knows how a model is found or loaded: that is behind `models.Models`.
"""
