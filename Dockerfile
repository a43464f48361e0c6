# anespec on a processor: convert, validate, chat and serve. docs/install.md says how to run it.
FROM python:3.12-slim-bookworm AS build

WORKDIR /source
RUN python -m venv /anespec
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY anespec anespec
COPY convert convert
COPY embedded embedded
COPY manifests manifests
COPY runtime runtime
COPY swift swift
COPY validate validate
# What installs is not needed to run.
RUN /anespec/bin/pip install --no-cache-dir --constraint constraints.txt . \
    && /anespec/bin/pip uninstall --yes pip

FROM python:3.12-slim-bookworm

# Any user may run it (docker run --user), so what it keeps lies where each may make a folder of their own.
RUN useradd --uid 10001 --home-dir /cache --no-create-home --shell /usr/sbin/nologin anespec \
    && install -d -m 1777 /cache \
    && install -d /models
COPY --from=build /anespec /anespec

# A container's own 127.0.0.1 is reached by nobody else; without --api-key-file the daemon refuses to start.
ENV PATH=/anespec/bin:$PATH \
    HOME=/cache \
    XDG_CACHE_HOME=/cache \
    XDG_STATE_HOME=/cache/state \
    ANESPEC_SERVE_HOST=0.0.0.0 \
    ANESPEC_SERVE_PORT=8080

USER 10001
WORKDIR /models
EXPOSE 8080

# 503 while models are converted and loaded, which for a large GGUF takes minutes, once.
HEALTHCHECK --start-period=30m --interval=30s --timeout=5s \
    CMD ["python", "-c", "import os, urllib.request as ask; ask.urlopen('http://127.0.0.1:' + os.environ['ANESPEC_SERVE_PORT'] + '/health', timeout=4)"]

ENTRYPOINT ["anespec"]
CMD ["--help"]
