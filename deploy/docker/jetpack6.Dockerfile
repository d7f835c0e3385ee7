# gain-stream on a Jetson Orin with JetPack 6 (Ubuntu 22.04, Python 3.10, CUDA 12.6, TensorRT 10.3).
# Build on the board, or anywhere with qemu-user; L4T of image and board must be the same r36.
#   docker build -f deploy/docker/jetpack6.Dockerfile -t gain-edge:jp6 .
#   docker run --rm --runtime nvidia --device /dev/video0 -v "$PWD/data:/data" \
#       -p 127.0.0.1:8080:8080 gain-edge:jp6 0 --model /data/vit_b16.onnx \
#       --serve 0.0.0.0:8080 --serve-token-file /data/token
ARG BASE=nvcr.io/nvidia/l4t-jetpack:r36.4.0
FROM ${BASE}
SHELL ["/bin/bash", "-o", "pipefail", "-c"]
# python3-libnvinfer: TensorRT's bindings come with JetPack, never from PyPI on aarch64.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends python3-venv python3-libnvinfer \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --create-home --uid 10001 --groups video gain
WORKDIR /src
COPY . .
# NumPy below 2, because what JetPack 6 brings was built against NumPy 1.
# hadolint ignore=DL3013
RUN python3 -m venv --system-site-packages /opt/gain-edge \
    && /opt/gain-edge/bin/pip install --no-cache-dir '.[serve]' 'numpy<2' 'cupy-cuda12x<14' \
    && rm -rf /src/*
ENV PATH=/opt/gain-edge/bin:$PATH PYTHONUNBUFFERED=1
USER 10001
WORKDIR /home/gain
# For streams served on port 8080; --no-healthcheck for one that is not.
HEALTHCHECK --interval=30s --timeout=5s --start-period=120s \
    CMD ["python3", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8080/healthz', timeout=4)"]
STOPSIGNAL SIGTERM
ENTRYPOINT ["gain-stream"]
