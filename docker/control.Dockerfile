# A control machine inside the network, with clusterctl installed from this repository. Build context: the repository.
ARG BASE_IMAGE=debian:bookworm-slim
FROM ${BASE_IMAGE}

RUN apt-get update -q \
 && DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends \
      ca-certificates openssh-client python3 python3-venv tini \
 && rm -rf /var/lib/apt/lists/*

# EXTRA_CA is the text of certificates that a proxy requires; the others are pip's own settings.
ARG EXTRA_CA=
ARG PIP_INDEX_URL=
ARG PIP_EXTRA_INDEX_URL=
ARG PIP_TRUSTED_HOST=
ARG PIP_DEFAULT_TIMEOUT=
RUN if [ -n "$EXTRA_CA" ]; then \
      printf '%s\n' "$EXTRA_CA" >/usr/local/share/ca-certificates/extra.crt && update-ca-certificates; \
    fi

# Install the dependencies first, in a layer that stays cached when only the program changes.
COPY pyproject.toml /src/
RUN python3 -m venv /opt/clusterctl \
 && export PIP_CERT=/etc/ssl/certs/ca-certificates.crt PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 \
 && python3 -c 'import tomllib; t = tomllib.load(open("/src/pyproject.toml", "rb")); \
print(*t["build-system"]["requires"], *t["project"]["dependencies"], sep="\n")' >/tmp/requirements.txt \
 && /opt/clusterctl/bin/pip install -q -r /tmp/requirements.txt \
 && rm /tmp/requirements.txt
COPY . /src
RUN /opt/clusterctl/bin/pip install -q --no-deps --no-build-isolation --disable-pip-version-check /src

COPY docker/control/entrypoint /usr/local/bin/entrypoint
RUN chmod 755 /usr/local/bin/entrypoint \
 && groupadd --gid 1001 access \
 && useradd --uid 1001 --gid 1001 --create-home --shell /bin/bash --password '*' control

ENV PATH=/opt/clusterctl/bin:/usr/local/bin:/usr/bin:/bin CLUSTERCTL_CONF=/home/control/conf.py
USER control
WORKDIR /home/control
ENTRYPOINT ["/usr/bin/tini", "--", "/usr/local/bin/entrypoint"]
