# The project's two images. Each comes from a base image of your choice:
#
#   docker build --target operator --tag REGISTRY/diloco-operator:TAG .
#   docker build --target trainer  --tag REGISTRY/diloco-trainer:TAG --build-arg TRAINER_BASE=YOUR-VENDORS-PYTORCH-IMAGE .
#
# With --build-arg COMMIT=$(git rev-parse HEAD), /metrics names the commit (diloco_build_info).
#
# Give each build another TAG (README.md has a command for it): nodes do not pull a tag again that they have.
#
# A base needs python3 (3.11 or later) and its venv module. Where the trainer's base has torch and numpy, those are used
# and never replaced: a vendor's build for its accelerators stays. Where it has none, both come from the package index.
#
# Nothing here needs BuildKit. The classic builder also builds the stages above the wanted one, so give it both bases.
# Behind a package index of your own: --build-arg PIP_INDEX_URL=..., or PIP_INDEX_URL and PIP_CERT in the base's
# environment or pip.conf.
#
# The same sources on the same bases give the same layers: no time, no cache and no order of a set gets into them.
# What runs needs no place to write but /tmp. Dependencies are a layer of their own: it is pulled and loaded once.

ARG OPERATOR_BASE=python:3.12-slim
ARG TRAINER_BASE=python:3.12-slim


# What is to be installed, in a stage of its own: only a change of this list installs all of it anew, not any change of
# pyproject.toml.
FROM ${OPERATOR_BASE} AS operator-requirements
WORKDIR /build
COPY pyproject.toml constraints.txt ./
COPY scripts/image_requirements.py scripts/
RUN mkdir /list && python3 scripts/image_requirements.py operator /list


FROM ${OPERATOR_BASE} AS operator-dependencies
# The first two only while building. Unset by default, so that what the base says holds.
ARG PIP_INDEX_URL
ARG PIP_EXTRA_INDEX_URL
ARG SOURCE_DATE_EPOCH=315532800
# A hash seed: compiled files hold sets, whose order would differ from build to build.
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PYTHONDONTWRITEBYTECODE=1 PYTHONHASHSEED=0
WORKDIR /build
# What the image gets is gathered in /dependencies and /own. pip stays outside: nothing is installed into it later.
RUN mkdir -p /dependencies/opt /dependencies/etc /own \
 && python3 -m venv --without-pip /opt/diloco \
 && mv /opt/diloco /dependencies/opt/ && ln -s /dependencies/opt/diloco /opt/diloco \
 && python3 -m venv /build/pip \
 && cp /etc/passwd /etc/group /dependencies/etc/ \
 && echo 'diloco:x:10001:10001::/tmp:/usr/sbin/nologin' >> /dependencies/etc/passwd \
 && echo 'diloco:x:10001:' >> /dependencies/etc/group
COPY --from=operator-requirements /list/ /list/
# Only what the operator needs: no torch, no gRPC. Compiled here, as nothing can be written where it runs; compiled
# files are not checked against times, which are all made equal.
RUN /build/pip/bin/pip --python /opt/diloco/bin/python3 install --quiet --no-compile \
      --constraint /list/image-constraints.txt --requirement /list/image-requirements.txt \
 && /opt/diloco/bin/python3 -m compileall -q --invalidation-mode unchecked-hash /opt/diloco/lib \
 && find /dependencies -exec touch --no-dereference --date="@${SOURCE_DATE_EPOCH}" {} +


FROM operator-dependencies AS operator-build
ARG PIP_INDEX_URL
ARG PIP_EXTRA_INDEX_URL
ARG SOURCE_DATE_EPOCH=315532800
COPY pyproject.toml README.md LICENSE ./
COPY trainer/diloco/__init__.py trainer/diloco/py.typed trainer/diloco/
COPY trainer/diloco/spec trainer/diloco/spec/
COPY trainer/diloco/runtime trainer/diloco/runtime/
COPY operator/diloco_operator operator/diloco_operator/
# Of what this adds, all but the programs diloco and kubectl-diloco, which need the rest of diloco.
RUN touch /build/before \
 && /build/pip/bin/pip --python /opt/diloco/bin/python3 install --quiet --no-compile --no-deps . \
 && rm /opt/diloco/bin/diloco /opt/diloco/bin/kubectl-diloco \
 && /opt/diloco/bin/python3 -m compileall -q --invalidation-mode unchecked-hash \
      /opt/diloco/lib/python3*/site-packages/diloco /opt/diloco/lib/python3*/site-packages/diloco_operator \
 && cd /dependencies \
 && find opt/diloco -newer /build/before ! -type d -exec cp --parents --no-dereference --target-directory=/own {} + \
 && find /own -exec touch --no-dereference --date="@${SOURCE_DATE_EPOCH}" {} +


FROM ${OPERATOR_BASE} AS operator
ARG COMMIT
LABEL org.opencontainers.image.title="diloco-operator" \
      org.opencontainers.image.description="Runs DiLoCoJobs on Kubernetes" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY --from=operator-dependencies /dependencies /
COPY --from=operator-build /own /
ENV PATH=/opt/diloco/bin:${PATH} HOME=/tmp PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1 DILOCO_COMMIT=${COMMIT}
WORKDIR /tmp
# By number: Kubernetes cannot tell from a name that it is not root.
USER 10001:10001
EXPOSE 8080
ENTRYPOINT ["diloco-operator"]


# The same for the trainer: everything of diloco, beside what the base has.
FROM ${TRAINER_BASE} AS trainer-requirements
WORKDIR /build
COPY pyproject.toml constraints.txt ./
COPY scripts/image_requirements.py scripts/
RUN mkdir /list && python3 scripts/image_requirements.py trainer /list


FROM ${TRAINER_BASE} AS trainer-dependencies
ARG PIP_INDEX_URL
ARG PIP_EXTRA_INDEX_URL
ARG SOURCE_DATE_EPOCH=315532800
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PYTHONDONTWRITEBYTECODE=1 PYTHONHASHSEED=0
WORKDIR /build
# pip goes with it: an image of yours, FROM this one, installs your model's packages (as root, then USER 10001:10001).
RUN mkdir -p /dependencies/opt /dependencies/etc /own \
 && python3 -m venv --system-site-packages /opt/diloco \
 && mv /opt/diloco /dependencies/opt/ && ln -s /dependencies/opt/diloco /opt/diloco \
 && cp /etc/passwd /etc/group /dependencies/etc/ \
 && echo 'diloco:x:10001:10001::/tmp:/usr/sbin/nologin' >> /dependencies/etc/passwd \
 && echo 'diloco:x:10001:' >> /dependencies/etc/group
COPY --from=trainer-requirements /list/ /list/
# First, what the base has and keeps, and what asks for torch: pip fails here, naming both versions, where the base's does
# not suit diloco.
RUN /opt/diloco/bin/pip install --quiet --no-deps \
      --constraint /list/image-constraints.txt --requirement /list/image-kept.txt \
 && /opt/diloco/bin/pip install --quiet --no-compile \
      --constraint /list/image-constraints.txt --requirement /list/image-requirements.txt \
 && find /opt/diloco/lib -name __pycache__ -prune -exec rm -r {} + \
 && /opt/diloco/bin/python3 -m compileall -q --invalidation-mode unchecked-hash /opt/diloco/lib \
 && find /dependencies -exec touch --no-dereference --date="@${SOURCE_DATE_EPOCH}" {} +


FROM trainer-dependencies AS trainer-build
ARG PIP_INDEX_URL
ARG PIP_EXTRA_INDEX_URL
ARG SOURCE_DATE_EPOCH=315532800
COPY pyproject.toml README.md LICENSE ./
COPY trainer/diloco trainer/diloco/
COPY operator/diloco_operator operator/diloco_operator/
RUN touch /build/before \
 && /opt/diloco/bin/pip install --quiet --no-compile --no-deps . \
 && /opt/diloco/bin/python3 -m compileall -q --invalidation-mode unchecked-hash \
      /opt/diloco/lib/python3*/site-packages/diloco /opt/diloco/lib/python3*/site-packages/diloco_operator \
 && cd /dependencies \
 && find opt/diloco -newer /build/before ! -type d -exec cp --parents --no-dereference --target-directory=/own {} + \
 && find /own -exec touch --no-dereference --date="@${SOURCE_DATE_EPOCH}" {} +


FROM ${TRAINER_BASE} AS trainer
ARG COMMIT
LABEL org.opencontainers.image.title="diloco-trainer" \
      org.opencontainers.image.description="Learners and syncers of DiLoCoJobs, and the diloco program" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY --from=trainer-dependencies /dependencies /
COPY --from=trainer-build /own /
ENV PATH=/opt/diloco/bin:${PATH} HOME=/tmp PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1 DILOCO_COMMIT=${COMMIT}
WORKDIR /tmp
USER 10001:10001
EXPOSE 8080 29400
ENTRYPOINT ["diloco"]
