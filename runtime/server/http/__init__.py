"""HTTP below the endpoints: sockets, limits, keys, bodies, streams and errors."""
