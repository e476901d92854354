#!/usr/bin/env bash
# The private clusters of this clone: demo, test, in-backend and bench.
#
#   cluster.sh start PURPOSE MAJOR    a running server with the library that is installed in the server tree
#   cluster.sh stop                   stops all of them
#   cluster.sh clean                  stops all of them and deletes all they have written
#   cluster.sh remove PURPOSE         stops it and deletes its data; its log stays
#   cluster.sh psql PURPOSE [ARG...]  psql as its superuser
#   cluster.sh env PURPOSE            libpq's variables for its superuser, to be evaluated by a shell
#
# The servers run as an unprivileged OS user, who may be unable to enter the clone: everything they need is copied to a
# directory of this clone's own below /var/tmp (or below AGENT_SESSIONS_RUN_DIR). They listen on a Unix socket only. Who
# can reach the socket is trusted in every role, so its directory is closed to all but the servers' OS user (and root).
set -euo pipefail
# shellcheck source=scripts/workspace.sh
source "$(dirname "$0")/workspace.sh"

run=${AGENT_SESSIONS_RUN_DIR:-/var/tmp}/agent_sessions-$(id -u)-$(printf %s "$root" | sha256sum | cut -c1-8)
socket=$run/socket
superuser=postgres

port_of() {
    case $1 in
        demo) echo 5432 ;;
        test) echo 5433 ;;
        in-backend) echo 5434 ;;
        bench) echo 5435 ;;
        *) die "there is no cluster '$1'" ;;
    esac
}

if [ "$(id -u)" = 0 ]; then
    if id postgres >/dev/null 2>&1; then
        server_user=postgres
    else
        server_user=agent_sessions
        id "$server_user" >/dev/null 2>&1 || useradd --system --no-create-home --shell /usr/sbin/nologin "$server_user"
    fi
    as_server() { runuser -u "$server_user" -- env -i PATH="$PATH" LC_ALL=C.UTF-8 "$@"; }
    give_to_server() { chown "$server_user:" "$@"; }
else
    as_server() { env -i PATH="$PATH" LC_ALL=C.UTF-8 "$@"; }
    give_to_server() { :; }
fi

# The parent is open to everyone: what lies there under our name is only used if we made it.
open_run_directory() {
    mkdir -p "$run"
    if [ -L "$run" ] || [ ! -O "$run" ]; then die "$run belongs to someone else"; fi
    chmod 0711 "$run"
    mkdir -p "$socket"
    give_to_server "$socket"
    chmod 0700 "$socket"
    # A socket's path may have 107 bytes.
    [ "${#socket}" -le 90 ] || die "$socket is too long for the path of a socket: set AGENT_SESSIONS_RUN_DIR"
    cd "$run"
}

at() {
    purpose=$1
    port=$(port_of "$purpose")
    home=$run/$purpose
    bin=$home/pg/bin
    log=$home/log/server.log
}

# The data directory of the major version that the copied programs are of.
data() { echo "$home/data-$(major_of "$bin/pg_config")"; }

# Asks the server, since a process id in a file tells nothing after a crash. A server that still recovers counts.
is_running() {
    local answer=0
    [ -x "$bin/pg_isready" ] || return 1
    "$bin/pg_isready" --quiet -h "$socket" -p "$port" || answer=$?
    [ "$answer" -le 1 ]
}

# The processes of a killed server may outlive it for a moment, and then block the next one.
await_crashed() {
    local data=$1 pid
    as_server test -e "$data/postmaster.pid" || return 0
    pid=$(as_server head -n 1 "$data/postmaster.pid")
    timeout 15 tail --pid="$pid" -f /dev/null || say "Process $pid of a killed server is still there"
}

fingerprint() {
    local tree=$1
    "$tree/bin/pg_config" --version
    (cd "$tree" && sha256sum "$(realpath --relative-to=. "$("$tree/bin/pg_config" --pkglibdir)")"/agent_sessions.so \
        "$(realpath --relative-to=. "$("$tree/bin/pg_config" --sharedir)")"/extension/agent_sessions*)
}

settings() {
    echo "-c listen_addresses='' -c unix_socket_directories='$socket' -c port=$port"
    case $purpose in
        demo) ;;
        # Durability is the default. Memory that holds what a comparison writes, and no checkpoint by size amid a turn.
        bench) echo "-c shared_buffers=2GB -c max_wal_size=8GB -c checkpoint_timeout=30min" ;;
        # The tests drop their data anyway, and open many connections.
        *) echo "-c fsync=off -c max_connections=200 -c max_prepared_transactions=20 -c wal_level=logical" ;;
    esac
}

make_cluster() {
    local data=$1
    say "Creating the $purpose cluster in $data"
    rm -rf "$data.partial"
    install -d -m 0700 "$data.partial"
    give_to_server "$data.partial"
    as_server "$bin/initdb" -D "$data.partial" --username="$superuser" --auth-local=trust --auth-host=reject \
        --encoding=UTF8 --locale=C.UTF-8 --no-instructions >"$home/initdb.log" 2>&1 || {
        cat "$home/initdb.log" >&2
        die 'initdb failed'
    }
    mv "$data.partial" "$data"
}

start() {
    local tree=$1 installed
    [ -x "$tree/bin/postgres" ] || die "there is no server in $tree"
    open_run_directory
    installed=$(fingerprint "$tree")
    if is_running; then
        [ "$(<"$home/installed")" != "$installed" ] || return 0
        stop
    fi
    rm -rf "$home/pg"
    mkdir -p "$home/log"
    cp -R "$tree" "$home/pg"
    chmod -R u+rwX,go+rX "$home/pg"
    give_to_server "$home/log"
    printf '%s\n' "$installed" >"$home/installed"
    as_server test -x "$bin/postgres" || die "the server's OS user cannot run programs in $run: set AGENT_SESSIONS_RUN_DIR"
    local data
    data=$(data)
    [ -d "$data" ] || make_cluster "$data"
    await_crashed "$data"
    say "Starting the $purpose cluster (PostgreSQL ${data##*-}, log: $log)"
    as_server "$bin/pg_ctl" -D "$data" -l "$log" -o "$(settings | tr '\n' ' ')" --wait --timeout=120 start >"$home/start.log" 2>&1 </dev/null || {
        cat "$home/start.log" >&2
        tail -n 20 "$log" >&2
        die 'the server does not start'
    }
}

stop_all() {
    for purpose in demo test in-backend bench; do
        at "$purpose"
        if is_running; then
            say "Stopping the $purpose cluster"
            stop
        fi
    done
}

stop() { (cd "$run" && as_server "$bin/pg_ctl" -D "$(data)" --mode=fast --wait --timeout=120 stop >/dev/null); }

command=${1:?start, stop, clean, remove, psql or env}
shift
case $command in
    start)
        at "${1:?purpose}"
        variant=
        [ "$purpose" != in-backend ] || variant=-in-backend
        start "$(server_tree "${2:?major version}$variant")"
        ;;
    stop) stop_all ;;
    clean)
        stop_all
        rm -rf "$run"
        ;;
    remove)
        at "${1:?purpose}"
        ! is_running || stop
        rm -rf "$home"/data-* "$home/pg"
        ;;
    psql)
        at "${1:?purpose}"
        shift
        is_running || die "no $purpose cluster is running"
        exec "$bin/psql" -h "$socket" -p "$port" -U "$superuser" "$@"
        ;;
    env)
        at "${1:?purpose}"
        printf 'export PGHOST=%q PGPORT=%q PGUSER=%q\n' "$socket" "$port" "$superuser"
        ;;
    *) die "cluster.sh: start, stop, clean, remove, psql or env, not '$command'" ;;
esac
