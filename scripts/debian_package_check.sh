#!/usr/bin/env bash
# debian_package_check.sh PG_CONFIG: installs the .deb of make package in a root of its own, as made by debootstrap, tries it there as
# a database's owner, looks at it with lintian, and removes it again. Needs root and debootstrap; some minutes.
set -euo pipefail
# shellcheck source=scripts/workspace.sh
source "$(dirname "$0")/workspace.sh"

[ "$(id -u)" = 0 ] || die 'a root of its own is for root to make'
command -v debootstrap >/dev/null || die 'debootstrap is missing'

# Mounts and processes end with the namespaces, however this ends.
if [ -z "${AGENT_SESSIONS_UNSHARED-}" ]; then
    AGENT_SESSIONS_UNSHARED=1 exec unshare --mount-proc --pid --fork --kill-child "$0" "$@"
fi

major=$(major_of "${1:?pg_config}")
package=$("$root/scripts/package.sh" debian "$1")
release=$(. /etc/os-release && echo "$VERSION_CODENAME")

# Says nothing unless it fails.
quietly() {
    "$@" </dev/null >"$clean.log" 2>&1 || {
        cat "$clean.log" >&2
        die "$1 has failed"
    }
}

clean=$(mktemp -d)
chmod 755 "$clean"
trap 'umount "$clean/proc"; rm -rf "$clean" "$clean.log"' EXIT
say "Making a root of $release in $clean"
quietly debootstrap --variant=minbase "$release" "$clean"
mount -t proc proc "$clean/proc"
cp /etc/resolv.conf "$clean/etc"
printf '#!/bin/sh\nexit 101\n' >"$clean/usr/sbin/policy-rc.d"
chmod +x "$clean/usr/sbin/policy-rc.d"
cp "$package" "$clean/tmp"

in_root() { chroot "$clean" env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C.UTF-8 DEBIAN_FRONTEND=noninteractive "$@"; }
apt() { quietly in_root apt-get -qq -y --no-install-recommends "$@"; }
as_postgres() { in_root runuser -u postgres -- "$@"; }

say "Installing ${package##*/}"
apt update
apt install "/tmp/${package##*/}"
in_root dpkg --verify "postgresql-$major-agent-sessions"
in_root pg_ctlcluster "$major" main start
as_postgres psql -qX -v ON_ERROR_STOP=1 -c 'create role app login' -c 'create database app owner app'
as_postgres psql -qXAt -v ON_ERROR_STOP=1 app <<SQL
set session authorization app;
create extension agent_sessions;
select agent_sessions.session_append('s', '{"a": 1}', on_missing => 'create');
do \$\$ begin
  assert (select ok and entries = 1 from agent_sessions.session_verify('s')), 'the log does not verify';
  assert agent_sessions.schema_version() = '$(version)', 'another version';
  perform agent_sessions.schema_require(min => '$(version)', max => '$(version)');
end \$\$;
SQL
say 'What lintian says'
apt install lintian
in_root lintian --allow-root --fail-on error --display-info "/tmp/${package##*/}"
in_root dpkg --remove "postgresql-$major-agent-sessions" >/dev/null
[ ! -e "$clean/usr/share/postgresql/$major/extension/agent_sessions.control" ] || die 'it is still there after its removal'
in_root pg_ctlcluster "$major" main stop
say "${package##*/} installs, works and goes"
