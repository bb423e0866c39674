# The demo:             docker build -t cotrain . && docker run --rm cotrain
# Keep what it writes:  docker run --rm -v "$PWD/runs:/data/runs" cotrain fit digits
# Your own images:      docker run --rm -v "$PWD/photos:/data/photos:ro" -v "$PWD/runs:/data/runs" cotrain fit photos
# A mounted runs/ must be writable for user 1000; `--user "$(id -u)"` runs as you instead.
FROM python:3.11-slim

# Names an index with CPU builds of torch, where that is not the default:  --build-arg PIP_EXTRA_INDEX_URL=...
ARG PIP_EXTRA_INDEX_URL=""

COPY pyproject.toml constraints.txt README.md LICENSE /src/
COPY cotrain /src/cotrain
RUN pip install --no-cache-dir --disable-pip-version-check --constraint /src/constraints.txt /src && rm -r /src

# numba, matplotlib and cotrain cache under HOME: a place that any user may write to
RUN useradd --uid 1000 cotrain && mkdir -p /data/runs /data/home && chmod -R 777 /data
ENV HOME=/data/home \
    NUMBA_CACHE_DIR=/data/home/numba \
    PYTHONUNBUFFERED=1
USER cotrain
WORKDIR /data

ENTRYPOINT ["cotrain"]
CMD ["fit", "digits"]
