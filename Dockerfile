# The example dashboard in a container: it trains a small network and shows its layers.
#
#     docker build -t hookcore .
#     docker run --rm -p 127.0.0.1:8642:8642 hookcore        then open http://127.0.0.1:8642/
#
# Done: a small image with a user of its own and a health check. Not done: a server that takes frames from training on
# other machines; its image will need no torch. There are no passwords: publish the port on 127.0.0.1 only, as above.

ARG PYTHON_IMAGE=python:3.11-slim-bookworm

FROM ${PYTHON_IMAGE} AS build
# PyTorch's own index has the CPU build; without it the default one brings several gigabytes of CUDA along.
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
WORKDIR /source
COPY constraints.txt ./
RUN python -m venv /opt/hookcore \
    && /opt/hookcore/bin/pip install --no-cache-dir --extra-index-url "${TORCH_INDEX}" -c constraints.txt torch==2.13.0
COPY pyproject.toml README.md LICENSE ./
COPY hookcore hookcore
COPY app app
RUN /opt/hookcore/bin/pip install --no-cache-dir -c constraints.txt .

FROM ${PYTHON_IMAGE}
RUN useradd --system --uid 10001 --no-create-home hookcore
COPY --from=build /opt/hookcore /opt/hookcore
COPY examples/dashboard.py /opt/hookcore/examples/dashboard.py
# The user may write nowhere else: compiled kernels are kept here.
ENV NUMBA_CACHE_DIR=/tmp/numba \
    PATH=/opt/hookcore/bin:$PATH \
    PYTHONUNBUFFERED=1
USER 10001
EXPOSE 8642
STOPSIGNAL SIGINT
HEALTHCHECK --interval=10s --timeout=3s --start-period=30s \
    CMD ["python", "-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:8642/healthz', timeout=2)"]
# Inside its own network the container must listen on every address; which of the host's lead there is `-p`'s say.
CMD ["python", "/opt/hookcore/examples/dashboard.py", "--host", "0.0.0.0"]
