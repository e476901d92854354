#!/usr/bin/env bash
# Prints the path of a cargo-pgrx of the version that Cargo.toml pins. Without one on PATH it builds its own under target/tools.
set -euo pipefail
# shellcheck source=scripts/workspace.sh
source "$(dirname "$0")/workspace.sh"

version=$(sed -n 's/^pgrx *=.*"=\([0-9.]*\)".*/\1/p' "$root/Cargo.toml")
[ -n "$version" ] || die 'Cargo.toml pins no version of pgrx'

is_pinned() { [ "$("$1" pgrx --version 2>/dev/null)" = "cargo-pgrx $version" ]; }

on_path=$(command -v cargo-pgrx) || on_path=
if [ -n "$on_path" ] && is_pinned "$on_path"; then
    echo "$on_path"
    exit
fi
own=$target/tools/bin/cargo-pgrx
if [ ! -x "$own" ] || ! is_pinned "$own"; then
    say "Building cargo-pgrx $version into target/tools (some minutes, once)"
    # It only drives cargo: an unoptimised build is ready in half the time and runs no slower.
    CARGO_PROFILE_DEV_DEBUG=false cargo install cargo-pgrx --version "=$version" --locked --debug --force \
        --root "$target/tools" --target-dir "$target/tools/build" >&2
    rm -r "$target/tools/build"
fi
echo "$own"
