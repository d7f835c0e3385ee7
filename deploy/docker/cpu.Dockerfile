# gain-stream on a CPU, for deploy/compose and for trying things out.
#   docker build -f deploy/docker/cpu.Dockerfile -t gain-edge:cpu .
#   docker run --rm -p 127.0.0.1:8080:8080 -v "$PWD/data:/data" gain-edge:cpu \
#       rtsp://camera/1 --model /data/vit_b16.onnx --serve 0.0.0.0:8080 --serve-token-file /data/token
ARG BASE=python:3.12-slim-bookworm

FROM ${BASE} AS build
WORKDIR /src
COPY . .
# hadolint ignore=DL3013
RUN python3 -m venv /opt/gain-edge \
    && /opt/gain-edge/bin/pip install --no-cache-dir '.[serve]' \
    && /opt/gain-edge/bin/gain-export models/roadsigns/roadsigns.onnx \
        --output /opt/gain-edge/roadsigns.gain.onnx --labels models/roadsigns/labels.txt \
        --mean 0.5 0.5 0.5 --std 0.5 0.5 0.5 --crop-pct 1 --crop-mode squash \
        --interpolation bicubic

FROM ${BASE}
RUN useradd --create-home --uid 10001 gain && install -d -o gain /var/lib/gain-edge
COPY --from=build /opt/gain-edge /opt/gain-edge
ENV PATH=/opt/gain-edge/bin:$PATH PYTHONUNBUFFERED=1 OMP_NUM_THREADS=2
USER 10001
WORKDIR /var/lib/gain-edge
# For streams served on port 8080; --no-healthcheck for one that is not.
HEALTHCHECK --interval=30s --timeout=5s --start-period=60s \
    CMD ["python3", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8080/healthz', timeout=4)"]
STOPSIGNAL SIGTERM
ENTRYPOINT ["gain-stream"]
