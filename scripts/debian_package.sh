#!/usr/bin/env bash
# debian_package.sh MAJOR ROOT FOLDER: a .deb in FOLDER, of what is installed below ROOT for Debian's PostgreSQL MAJOR.
# The same input gives the same bytes. The time in it is SOURCE_DATE_EPOCH, else that of the last commit, else of CHANGELOG.md.
set -euo pipefail
# shellcheck source=scripts/workspace.sh
source "$(dirname "$0")/workspace.sh"
export LC_ALL=C TZ=UTC
umask 022

major=${1:?major version of PostgreSQL}
from=${2:?the root below which it is installed}
folder=${3:?the folder for the package}
library=usr/lib/postgresql/$major/lib/agent_sessions.so
extension=usr/share/postgresql/$major/extension
[ -e "$from/$library" ] || die "there is no $library below $from"

name=postgresql-$major-agent-sessions
revision=1
version=$(version)-$revision
architecture=$(dpkg --print-architecture)
maintainer="${DEBFULLNAME:-The agent_sessions authors} <${DEBEMAIL:-agent-sessions@packages.invalid}>"
epoch=${SOURCE_DATE_EPOCH:-$(git -C "$root" log -1 --format=%ct 2>/dev/null || stat -c %Y "$root/CHANGELOG.md")}
export SOURCE_DATE_EPOCH=$epoch

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
tree=$work/tree
documents=$tree/usr/share/doc/$name

install -D -m 644 "$from/$library" "$tree/$library"
strip --strip-unneeded --remove-section=.comment "$tree/$library"
install -d "$tree/$extension" "$documents/docs" "$documents/examples"
install -m 644 "$from/$extension"/agent_sessions* "$tree/$extension"
install -m 644 "$root/README.md" "$documents"
install -m 644 "$root"/docs/*.md "$documents/docs"
install -m 644 "$root/examples/metrics.yaml" "$documents/examples"
gzip -9n <"$root/CHANGELOG.md" >"$documents/changelog.gz"
gzip -9n >"$documents/changelog.Debian.gz" <<CHANGELOG
$name ($version) unstable; urgency=medium

  * Release ${version%-*}; changelog.gz tells what is in it.

 -- $maintainer  $(date -R -d "@$epoch")
CHANGELOG
{
    printf '%s\n' 'Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/' 'Upstream-Name: agent_sessions' ''
    printf '%s\n' 'Files: *' "$(sed -n 's/^Copyright (c) \(.*\)/Copyright: \1/p' "$root/LICENSE")" 'License: PostgreSQL'
    # The terms without title and copyright line; an empty line is a dot there.
    sed -e '1,/^Copyright/d' "$root/LICENSE" | sed -e '/./,$!d' -e 's/^$/./' -e 's/^/ /'
} >"$documents/copyright"

# What the library is linked to, as the packages of this machine name it.
mkdir -p "$work/debian" "$tree/DEBIAN"
printf 'Source: %s\n\nPackage: %s\nArchitecture: any\n' "$name" "$name" >"$work/debian/control"
linked=$(cd "$work" && dpkg-shlibdeps -O -e"$tree/$library" | sed -n 's/^shlibs:Depends=//p')
size=$(find "$tree" -type f -printf '%s\n' | awk '{ kib += int(($1 + 1023) / 1024) } END { print kib }')
cat >"$tree/DEBIAN/control" <<CONTROL
Package: $name
Version: $version
Architecture: $architecture
Maintainer: $maintainer
Installed-Size: $size
Depends: postgresql-$major, $linked
Section: database
Priority: optional
Description: sessions of AI agents inside PostgreSQL $major
 The extension agent_sessions keeps the sessions of AI agents in the database:
 an append-only log of messages and events, a state document with
 compare-and-set, leases that fence writers, branches that copy nothing, and
 hash chains that prove what was written.
 .
 CREATE EXTENSION agent_sessions in a database; nothing is preloaded.
CONTROL
(cd "$tree" && find usr -type f -print0 | sort -z | xargs -0 md5sum) >"$tree/DEBIAN/md5sums"
find "$tree" -exec touch -h -d "@$epoch" {} +

mkdir -p "$folder"
package=$folder/${name}_${version}_$architecture.deb
dpkg-deb --root-owner-group -Zxz --build "$tree" "$package" >/dev/null
echo "$package"
