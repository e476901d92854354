# docker build -t agent_sessions .                      PostgreSQL with the extension: CREATE EXTENSION agent_sessions in a database.
# docker build -t agent_sessions --target extension .   The files alone, as an image volume extension for CloudNativePG.
ARG PG=18
ARG VERSION=0.1.0

FROM rust:1.95-bookworm AS rust

FROM postgres:${PG}-bookworm AS build
ARG PG
RUN apt-get update && apt-get install -y --no-install-recommends \
        build-essential ca-certificates clang libclang-dev libssl-dev pkg-config "postgresql-server-dev-${PG}" \
    && rm -rf /var/lib/apt/lists/*
COPY --from=rust /usr/local/cargo /usr/local/cargo
COPY --from=rust /usr/local/rustup /usr/local/rustup
ENV CARGO_HOME=/usr/local/cargo RUSTUP_HOME=/usr/local/rustup PATH=/usr/local/cargo/bin:$PATH
WORKDIR /agent_sessions
COPY Cargo.toml ./
COPY scripts/workspace.sh scripts/cargo_pgrx.sh scripts/
RUN scripts/cargo_pgrx.sh
COPY . .
RUN make PG_CONFIG="/usr/lib/postgresql/${PG}/bin/pg_config" \
    && make install PG_CONFIG="/usr/lib/postgresql/${PG}/bin/pg_config" DESTDIR=/installed

# CloudNativePG mounts it, and has the server look in its folders (extension_control_path, which PostgreSQL has from 18 on).
FROM scratch AS extension
ARG PG
ARG VERSION
LABEL org.opencontainers.image.title=agent_sessions org.opencontainers.image.version=${VERSION}
COPY --from=build /installed/usr/lib/postgresql/${PG}/lib/ /lib/
COPY --from=build /installed/usr/share/postgresql/${PG}/extension/ /share/extension/
COPY LICENSE /licenses/agent_sessions/
USER 65532:65532

FROM postgres:${PG}-bookworm
ARG VERSION
LABEL org.opencontainers.image.title=agent_sessions org.opencontainers.image.version=${VERSION}
COPY --from=build /installed/ /
