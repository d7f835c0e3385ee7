# gain-stream on an x86-64 machine with an NVIDIA GPU.
#   docker build -f deploy/docker/cuda.Dockerfile -t gain-edge:cuda .
#   docker run --rm --gpus all --device /dev/video0 -v "$PWD/data:/data" -p 127.0.0.1:8080:8080 \
#       gain-edge:cuda 0 --model /data/vit_b16.onnx --device cuda \
#       --serve 0.0.0.0:8080 --serve-token-file /data/token
# onnxruntime-gpu 1.27 and later are built for CUDA 13; the base image must match it.
ARG BASE=nvcr.io/nvidia/cuda:13.0.2-cudnn-runtime-ubuntu24.04

FROM ${BASE} AS build
SHELL ["/bin/bash", "-o", "pipefail", "-c"]
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends python3 python3-venv \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY . .
# The CPU and the GPU wheel of ONNX Runtime hold the same files: the one installed last stays.
# hadolint ignore=DL3013
RUN python3 -m venv /opt/gain-edge \
    && /opt/gain-edge/bin/pip install --no-cache-dir '.[serve]' \
    && /opt/gain-edge/bin/pip uninstall --yes onnxruntime \
    && /opt/gain-edge/bin/pip install --no-cache-dir 'onnxruntime-gpu>=1.27'

FROM ${BASE}
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends python3 \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --create-home --uid 10001 --groups video gain
COPY --from=build /opt/gain-edge /opt/gain-edge
ENV PATH=/opt/gain-edge/bin:$PATH PYTHONUNBUFFERED=1
USER 10001
WORKDIR /home/gain
# For streams served on port 8080; --no-healthcheck for one that is not.
HEALTHCHECK --interval=30s --timeout=5s --start-period=120s \
    CMD ["python3", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8080/healthz', timeout=4)"]
STOPSIGNAL SIGTERM
ENTRYPOINT ["gain-stream"]
