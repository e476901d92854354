# PostgreSQL with agent_sessions: docker build -t agent_sessions . ; then CREATE EXTENSION agent_sessions in a database.
ARG PG=18

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

FROM postgres:${PG}-bookworm
COPY --from=build /installed/ /
