# The container image of one bundle. `dualpace build` sends the context (dualpace/build/context.py) and names the bases:
# one with Python 3.11 to compile on, and one to run on whose C library is no older.
#
# The runtime stage only copies trees whose times and modes say nothing of the machine or the day, so its layers repeat
# bit for bit. Nothing here uses a network. What changes most often comes last.
ARG COMPILE_BASE=python:3.11-bookworm
ARG RUNTIME_BASE=debian:bookworm-slim

FROM ${COMPILE_BASE} AS compile
# Sets are written into bytecode in the order of their hashes.
ENV PYTHONHASHSEED=0
COPY stage.py /

FROM compile AS interpreter
RUN python3 /stage.py python /tree/opt/dualpace/python && python3 /stage.py normalise /tree

FROM compile AS packages
COPY wheels/ /wheels/
RUN python3 "$(echo /wheels/pip-*.whl)/pip" install --quiet --no-index --find-links /wheels --no-deps --no-compile \
      --require-hashes --root-user-action ignore --target /tree/opt/dualpace/site -r /wheels/requirements.txt && \
    python3 /stage.py trim /tree/opt/dualpace/site && python3 /stage.py normalise /tree

FROM compile AS bundle
COPY bundle/ /tree/opt/dualpace/bundle/
RUN python3 /stage.py loads /tree/opt/dualpace/bundle/host/*.so && python3 /stage.py normalise /tree

FROM compile AS package
COPY app/ /tree/opt/dualpace/app/
RUN python3 /stage.py normalise /tree

FROM ${RUNTIME_BASE}
# Bases for GPUs name the folder where some clusters put the driver.
ENV PATH=/opt/dualpace/app/bin:/opt/dualpace/python/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    LD_LIBRARY_PATH=/opt/dualpace/python/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} \
    PYTHONPATH=/opt/dualpace/app:/opt/dualpace/site \
    PYTHONDONTWRITEBYTECODE=1 \
    HOME=/tmp \
    DUALPACE_BUNDLE=/opt/dualpace/bundle \
    DUALPACE_HOST=0.0.0.0 \
    DUALPACE_VERIFY_WEIGHTS=1 \
    NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility
ARG PORT=8000
EXPOSE ${PORT}
USER 65532:65532
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=10m --retries=2 CMD ["dualpace", "health"]
ENTRYPOINT ["dualpace"]
CMD ["serve"]
# Into the root, with the folders that they lie in, whose times would be the day's otherwise.
COPY --from=interpreter /tree/ /
COPY --from=packages /tree/ /
# Empty unless a checkpoint is baked in; otherwise one is mounted here.
COPY checkpoint/ /
COPY --from=bundle /tree/ /
COPY --from=package /tree/ /
