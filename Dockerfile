# hookcore on a GPU box: the dashboard without torch, and an image with CUDA's torch to train in. See docs/docker.md.
#
#     docker build -t hookcore .                             the dashboard (the last stage)
#     docker build -t hookcore-training --target training .  torch with CUDA, hookcore, and a compiler for Triton

# Pin it to the bytes with PYTHON_IMAGE=python:3.11-slim-bookworm@sha256:... of your registry.
ARG PYTHON_IMAGE=python:3.11.14-slim-bookworm

FROM ${PYTHON_IMAGE} AS build
# binutils for docker/slim.py
# hadolint ignore=DL3008
RUN apt-get update && apt-get install --yes --no-install-recommends binutils && rm -rf /var/lib/apt/lists/*
WORKDIR /source
COPY constraints.txt pyproject.toml docker/requirements.py ./
# A server needs hookcore's dependencies except those of trainers. The only list is in pyproject.toml.
RUN python3 -m venv /opt/hookcore \
    && python3 requirements.py torch > /opt/requirements.txt \
    && /opt/hookcore/bin/pip install --no-cache-dir --no-compile -c constraints.txt -r /opt/requirements.txt
COPY setup.py README.md LICENSE ./
COPY hookcore hookcore
COPY app app
COPY docker/slim.py ./
RUN /opt/hookcore/bin/pip install --no-cache-dir --no-compile --no-deps -c constraints.txt . \
    && /opt/hookcore/bin/python slim.py

FROM ${PYTHON_IMAGE} AS training
# Triton and torch.compile build their launchers with a C compiler.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends g++ python3-venv \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /source
COPY constraints.txt ./
# The default index has the CUDA build, which takes several gigabytes.
RUN python3 -m venv /opt/hookcore \
    && /opt/hookcore/bin/pip install --no-cache-dir -c constraints.txt torch==2.13.0
COPY pyproject.toml setup.py README.md LICENSE ./
COPY hookcore hookcore
COPY app app
RUN /opt/hookcore/bin/pip install --no-cache-dir -c constraints.txt '.[cuda,demo]'
ENV PATH=/opt/hookcore/bin:$PATH \
    HOME=/tmp \
    PYTHONUNBUFFERED=1
WORKDIR /work
USER 10001:10001
STOPSIGNAL SIGINT
# Add your script: docker run ... hookcore-training train.py
ENTRYPOINT ["hookcore", "run"]
CMD ["--help"]

FROM ${PYTHON_IMAGE} AS dashboard
LABEL org.opencontainers.image.title="hookcore" \
      org.opencontainers.image.description="A live dashboard for the activations and gradients of PyTorch trainings" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY --from=build /opt/hookcore /opt/hookcore
COPY docker/healthy.py /opt/hookcore/healthy.py
# The only writable place, for saved runs. It belongs to the server's user.
RUN install --directory --owner=10001 --group=10001 /data
ENV PATH=/opt/hookcore/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    HOOKCORE_HOST=0.0.0.0 \
    HOOKCORE_PORT=8642 \
    HOOKCORE_KEEP=/data
USER 10001:10001
VOLUME /data
EXPOSE 8642
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=15s \
    CMD ["/opt/hookcore/bin/python", "/opt/hookcore/healthy.py"]
# Within its own network, the container listens on every address, so it requires a token. `-p` selects the addresses of
# the host that lead to it.
ENTRYPOINT ["hookcore"]
CMD ["serve"]
