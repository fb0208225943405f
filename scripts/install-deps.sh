#!/usr/bin/env bash
# Installs the Debian packages that headgate needs on this machine. Idempotent:
# with nothing missing it only looks and needs neither root nor the network.
#
#   scripts/install-deps.sh run    what `make run` needs: nginx with Lua, curl, openssl
#   scripts/install-deps.sh test   that, and what `make test` and the benchmarks need on top
set -euo pipefail

root=$(cd "$(dirname "$0")/.." && pwd)

run_packages=(
  ca-certificates curl openssl procps iproute2
  nginx libnginx-mod-http-lua lua-resty-core lua-resty-lrucache lua-cjson
)
# luajit2 and wrk stand in one list on purpose: wrk alone pulls a LuaJIT library
# that pushes nginx's Lua module out, and so does the package `luajit`.
test_packages=(
  gcc libc6-dev util-linux shellcheck
  luajit2 lua-check lua-busted wrk
  haproxy
  ansible-core ansible-lint openssh-client
  systemd-container mmdebstrap debian-archive-keyring lintian dpkg-dev createrepo-c
)

say() { printf 'install-deps: %s\n' "$*"; }
die() { printf 'install-deps: %s\n' "$*" >&2; exit 1; }

require_go() {
  command -v go >/dev/null ||
    die "Go is missing: install Go $(wanted_go) or newer and put it on PATH"
  local have
  have=$(cd / && GOTOOLCHAIN=local go env GOVERSION)
  have=${have#go}
  [ "$(printf '%s\n' "$(wanted_go)" "$have" | sort -V | head -n 1)" = "$(wanted_go)" ] ||
    die "Go $have is too old: go.mod wants $(wanted_go) or newer"
}

wanted_go() { sed -n 's/^go //p' "$root/go.mod"; }

require_debian() {
  command -v apt-get >/dev/null && command -v dpkg-query >/dev/null && return
  die "this is not Debian or Ubuntu (no apt-get): install by hand nginx with its Lua module" \
    "(or OpenResty), curl and openssl, then run 'make build' and 'scripts/quickstart.sh'"
}

installed() {
  [ "$(dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null)" = installed ]
}

# The distribution's packages of nginx, HAProxy and keepalived start a server while they install.
# Where one came with our install, nobody asked for that server.
stop_stock() {
  local name=$1 binary=$2
  if [ -d /run/systemd/system ]; then
    if systemctl disable --now "$name.service" >/dev/null 2>&1; then
      say "$name came with this install; $name.service is stopped and disabled"
    else
      say "$name.service could not be stopped: run 'systemctl disable --now $name.service'"
    fi
    return
  fi
  if command -v update-rc.d >/dev/null; then
    update-rc.d "$name" disable >/dev/null 2>&1 || true
  fi
  local pid
  pid=$(head -n 1 "/run/$name.pid" 2>/dev/null) || return 0
  [ "$(readlink "/proc/$pid/exe" 2>/dev/null)" = "$binary" ] || return 0
  kill -TERM "$pid" 2>/dev/null || return 0
  for _ in $(seq 50); do
    kill -0 "$pid" 2>/dev/null || break
    sleep 0.1
  done
  say "$name came with this install and had started; it is stopped"
}

stop_new() {
  local name
  for name in "${new[@]}"; do
    stop_stock "$name" "/usr/sbin/$name"
  done
}

case "${1:-}" in
  run) packages=("${run_packages[@]}") ;;
  test) packages=("${run_packages[@]}" "${test_packages[@]}") ;;
  *) die "say what for: 'run' or 'test'" ;;
esac

require_go
require_debian

missing=()
for package in "${packages[@]}"; do
  installed "$package" || missing+=("$package")
done
if [ ${#missing[@]} -eq 0 ]; then
  exit 0
fi

[ "$(id -u)" -eq 0 ] ||
  die "packages are missing (${missing[*]}) and only root can install them: run this as root"

new=()
for name in nginx haproxy keepalived; do
  case " ${missing[*]} " in *" $name "*) [ -e "/usr/sbin/$name" ] || new+=("$name") ;; esac
done
# On EXIT, so that it also happens when apt fails half-way.
trap stop_new EXIT

say "installing ${missing[*]}"
export DEBIAN_FRONTEND=noninteractive NEEDRESTART_SUSPEND=1
apt=(apt-get -qq -o DPkg::Lock::Timeout=300)
log=$(mktemp)
quietly() {
  "$@" >"$log" 2>&1 </dev/null && return
  cat "$log" >&2
  rm -f "$log"
  die "'$*' failed"
}
quietly "${apt[@]}" update
quietly "${apt[@]}" install -y --no-install-recommends --no-upgrade "${packages[@]}"
rm -f "$log"
