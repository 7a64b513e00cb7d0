# One image for every node: the add-on, the Scrapy project `crawler`, and what they need; no build
# tools. docker-compose.yml uses it: see docs/docker.md.

FROM python:3.13.14-slim-bookworm AS dependencies
WORKDIR /source
COPY pyproject.toml .ci/constraints.txt README.md LICENSE ./
# An empty package stands in for ours, so that this layer changes only with the dependencies. The
# environment has no pip of its own: the image's pip installs into it.
RUN python -m venv --without-pip /venv \
    && mkdir semaphore_middleware && touch semaphore_middleware/__init__.py \
    && pip --python /venv/bin/python install --no-cache-dir \
        --constraint constraints.txt '.[commands,metrics]' \
    && pip --python /venv/bin/python uninstall --yes scrapy-semaphore

FROM dependencies AS project
COPY semaphore_middleware semaphore_middleware
# Into a directory of its own that is copied over the environment: a layer of some kilobytes.
RUN pip install --no-cache-dir --no-deps --target \
    "/project$(/venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')" .

FROM python:3.13.14-slim-bookworm
ENV PATH=/venv/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
# Fixed ids, so that a volume's owner is the same in every version of this image.
RUN groupadd --gid 10001 crawler \
    && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /crawl/data crawler \
    && mkdir -p /crawl/data && chown crawler:crawler /crawl/data
COPY --from=dependencies /venv /venv
COPY --from=project /project /
COPY docker/entrypoint.sh /usr/local/bin/with-redis
COPY scrapy.cfg /crawl/
COPY crawler /crawl/crawler
COPY lab/demo /crawl/lab/demo
USER 10001:10001
# Scrapy finds scrapy.cfg in the parent directory, and a crawl's files are written to the volume.
WORKDIR /crawl/data
# Ends in `exec`, so SIGTERM reaches Scrapy: it finishes its open requests and keeps the others.
ENTRYPOINT ["with-redis"]
CMD ["scrapy", "list"]
