"""The models of `anespec serve`: their configuration, loading and unloading. `runtime.server` is the HTTP
part."""
