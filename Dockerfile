# docker build -t mallob-py . && docker run --rm --shm-size 1g mallob-py
# A service whose folder is the caller's: mkdir api; docker run --rm --shm-size 1g --user "$(id -u):$(id -g)" \
#     -v "$PWD/api:/api" mallob-py mallob-py serve --api-dir /api     (beside it, mallob-py web --api-dir /api)
FROM debian:bookworm-slim
RUN apt-get update --quiet=2 \
    && apt-get install --quiet=2 --yes --no-install-recommends python3 python3-venv make \
    && rm -rf /var/lib/apt/lists/*
RUN useradd --create-home mallob
WORKDIR /home/mallob/mallob-py
COPY --chown=mallob . .
RUN chown mallob .
USER mallob
ENV PATH=/home/mallob/mallob-py/.venv/bin:$PATH
RUN make .venv/.stamps/run && .venv/bin/python -m pip install --quiet --editable '.[mpich,web]' \
    && chmod -R a+rX /home/mallob
# Whoever runs it may write here, whatever user that is.
ENV HOME=/tmp
CMD ["make", "demo"]
