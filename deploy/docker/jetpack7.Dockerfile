# gain-stream on a Jetson Thor or AGX Orin with JetPack 7 (Ubuntu 24.04, Python 3.12, CUDA 13).
# JetPack 7 runs the ordinary Arm server (SBSA) images; there is no l4t image for it.
#   docker build -f deploy/docker/jetpack7.Dockerfile -t gain-edge:jp7 .
#   docker run --rm --runtime nvidia --device /dev/video0 -v "$PWD/data:/data" \
#       -p 127.0.0.1:8080:8080 gain-edge:jp7 0 --model /data/vit_b16.onnx \
#       --serve 0.0.0.0:8080 --serve-token-file /data/token
# The image brings TensorRT with its Python bindings. An engine is bound to TensorRT's version:
# build it in this image, not on the host.
ARG BASE=nvcr.io/nvidia/tensorrt:25.09-py3
FROM ${BASE}
SHELL ["/bin/bash", "-o", "pipefail", "-c"]
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends python3-venv \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --create-home --uid 10001 --groups video gain
WORKDIR /src
COPY . .
# hadolint ignore=DL3013
RUN python3 -m venv --system-site-packages /opt/gain-edge \
    && /opt/gain-edge/bin/pip install --no-cache-dir '.[serve]' cupy-cuda13x \
    && rm -rf /src/*
ENV PATH=/opt/gain-edge/bin:$PATH PYTHONUNBUFFERED=1
USER 10001
WORKDIR /home/gain
# For streams served on port 8080; --no-healthcheck for one that is not.
HEALTHCHECK --interval=30s --timeout=5s --start-period=120s \
    CMD ["python3", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8080/healthz', timeout=4)"]
STOPSIGNAL SIGTERM
ENTRYPOINT ["gain-stream"]
