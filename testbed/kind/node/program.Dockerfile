# An image of one program. BASE is `scratch` where the program needs nothing.
ARG BASE
FROM ${BASE}
COPY program/ /usr/local/bin/
ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
