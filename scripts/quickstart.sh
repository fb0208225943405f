#!/usr/bin/env bash
# The body of `make run`: headgate with a proxy of its own on 127.0.0.1:8080 and :8443,
# fed from examples/quickstart, in front of small echo backends. Shows a few requests,
# then serves until Ctrl-C and leaves nothing behind.
#
#   QUICKSTART_ONCE=1 scripts/quickstart.sh    ends after the requests (1 when an answer is not the expected)
#   QUICKSTART_MANIFESTS=DIR                   another folder than examples/quickstart
set -euo pipefail
cd "$(dirname "$0")/.."

readonly headgate=bin/headgate
manifests=$(realpath "${QUICKSTART_MANIFESTS:-examples/quickstart}")

# Everything here is on this machine, whatever proxy the shell is set to use.
export NO_PROXY='*' no_proxy='*'

dir=
daemon=
followed=
backends=()
failures=0

die() { printf 'quickstart: %s\n' "$*" >&2; exit 1; }

# Ends a child and waits for it; after ten seconds it is killed.
end() {
  local pid=$1
  kill -TERM "$pid" 2>/dev/null || true
  for _ in $(seq 100); do
    kill -0 "$pid" 2>/dev/null || break
    sleep 0.1
  done
  kill -KILL "$pid" 2>/dev/null || true
  wait "$pid" 2>/dev/null || true
}

cleanup() {
  trap '' INT TERM HUP
  trap - EXIT
  [ -z "$followed" ] || end "$followed"
  [ -z "$daemon" ] || end "$daemon"
  local pid
  for pid in "${backends[@]}"; do end "$pid"; done
  [ -z "$dir" ] || { end_orphaned_proxy; rm -rf "$dir"; }
}

# The daemon ends its proxy itself; this is for a daemon that had to be killed.
# The master carries our private folder in its command line, and takes its workers along.
end_orphaned_proxy() {
  local pid
  for pid in $(pgrep -f "nginx: master process .*$dir/" || true); do
    kill -TERM "$pid" 2>/dev/null || true
    for _ in $(seq 50); do
      [ -d "/proc/$pid" ] || break
      sleep 0.1
    done
  done
}

trap cleanup EXIT
trap 'echo; exit 0' INT
trap 'exit 143' TERM
trap 'exit 129' HUP

[ -x "$headgate" ] || die "$headgate is missing: run 'make build' first"

require_free_ports() {
  local busy
  busy=$(ss -Hltn 'sport = :8080 or sport = :8443 or sport = :18081 or sport = :18082 or sport = :18083 or sport = :18084' |
    awk '{ print $4 }' | sort -u | tr '\n' ' ')
  [ -z "$busy" ] || die "these ports are taken by another program: $busy"
}

# Starts a child in a process group of its own: Ctrl-C then reaches this script alone, which ends
# each child once and in order. (A second signal would make the daemon leave its proxy behind.)
background() {
  set -m
  "$@" </dev/null &
  set +m
}

start_backend() {
  background "$headgate" dev echo --listen "$2" --name "$1" >>"$dir/backends.log" 2>&1
  backends+=($!)
}

# A private authority and a certificate for shop.localhost, good for a week; the key never leaves $dir.
make_certificate() {
  local tls=$dir/tls
  mkdir -m 0700 "$tls" "$dir/secrets"
  {
    openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 7 \
      -subj '/CN=headgate quick start CA' -keyout "$tls/ca.key" -out "$dir/ca.crt"
    openssl req -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes \
      -subj '/CN=shop.localhost' -keyout "$tls/shop.key" -out "$tls/shop.csr"
    printf 'subjectAltName=DNS:shop.localhost\nbasicConstraints=CA:FALSE\n' >"$tls/extensions"
    openssl x509 -req -in "$tls/shop.csr" -CA "$dir/ca.crt" -CAkey "$tls/ca.key" -CAcreateserial \
      -days 7 -extfile "$tls/extensions" -out "$tls/shop.crt"
  } >"$dir/openssl.log" 2>&1 || { cat "$dir/openssl.log" >&2; die "openssl could not make the certificate"; }
  cat >"$dir/secrets/shop-tls.yaml" <<EOF
apiVersion: v1
kind: Secret
type: kubernetes.io/tls
metadata: {name: shop-tls, namespace: quickstart}
data:
  tls.crt: $(base64 -w 0 <"$tls/shop.crt")
  tls.key: $(base64 -w 0 <"$tls/shop.key")
EOF
  rm -r "$tls"
}

start_daemon() {
  {
    cat examples/quickstart.yaml
    printf 'stateDir: %s/state\nruntimeDir: %s/run\n' "$dir" "$dir"
  } >"$dir/headgate.yaml"
  background "$headgate" run --config "$dir/headgate.yaml" --manifests "$manifests" --manifests "$dir/secrets" \
    >"$dir/headgate.log" 2>&1
  daemon=$!
}

# Ready when both listeners serve: one host by http, the other by https with its own certificate.
wait_until_served() {
  for _ in $(seq 200); do
    kill -0 "$daemon" 2>/dev/null || break
    if curl -sf -o /dev/null --max-time 2 http://blog.localhost:8080/feed &&
      curl -sf -o /dev/null --max-time 2 --cacert "$dir/ca.crt" https://shop.localhost:8443/; then
      return
    fi
    sleep 0.1
  done
  echo "quickstart: headgate does not serve; its log:" >&2
  tail -n 40 "$dir/headgate.log" >&2
  exit 1
}

# The first fields of an echo backend's answer on one line; the request's headers follow in the real one.
backend_says() {
  printf '    {%s, …}\n' "$(sed -nE 's/^  ("(name|method|uri|host)": .*),$/\1/p' | paste -sd ' ' | sed 's/" "/", "/g')"
}

# show STATUS TITLE URL [CURL ARGUMENT...]: one request and its answer, indented.
show() {
  local expected=$1 title=$2 url=$3 status
  shift 3
  printf '\n# %s\n$ curl -i %s%s\n' "$title" "${*:+$* }" "$url"
  status=$(curl -s -o "$dir/body" -D "$dir/head" -w '%{http_code}' --max-time 5 "$@" "$url") || status=none
  if [ "$status" != none ]; then
    tr -d '\r' <"$dir/head" | grep -iE '^(HTTP/|location:|strict-transport-security:)' | sed 's/^/    /' || true
    # The page of a redirect or a 404 says nothing that its status did not.
    if [ "$status" = 200 ]; then
      backend_says <"$dir/body"
    fi
  fi
  if [ "$status" != "$expected" ]; then
    printf '    !! expected status %s, got %s\n' "$expected" "$status"
    failures=$((failures + 1))
  fi
}

show_requests() {
  show 200 'a prefix: /posts and what lies below it' http://blog.localhost:8080/posts/2026
  show 404 'a prefix goes by path element, so this is none' http://blog.localhost:8080/postscript
  show 200 'an exact path' http://blog.localhost:8080/feed
  show 404 'and nothing below it' http://blog.localhost:8080/feed/atom
  show 308 'a host with TLS: plain http is sent to https' http://shop.localhost:8080/
  show 200 'https, the certificate chosen by SNI' https://shop.localhost:8443/ --cacert "$dir/ca.crt"
  show 200 'the second endpoint of the same service' https://shop.localhost:8443/ --cacert "$dir/ca.crt"
  show 200 'the longer prefix wins' https://shop.localhost:8443/api/orders --cacert "$dir/ca.crt"
  show 404 'a host that nobody claims' http://nobody.localhost:8080/
}

say_what_next() {
  cat <<EOF

headgate serves $manifests on http://127.0.0.1:8080 and https://127.0.0.1:8443.
Change a manifest in a second terminal and ask again; it is served at once, without a reload of nginx:

    sed -i 's#/feed#/news#' $manifests/blog.yaml
    curl -i http://blog.localhost:8080/news
    sed -i 's#/news#/feed#' $manifests/blog.yaml

What headgate does about it appears below. Ctrl-C ends everything and removes $dir.

EOF
}

require_free_ports
dir=$(mktemp -d "${TMPDIR:-/tmp}/headgate.XXXXXX")
chmod 0711 "$dir" # nginx's workers, another user, pass through; only we can list it
make_certificate
start_backend web-1 127.0.0.1:18081
start_backend web-2 127.0.0.2:18081
start_backend api 127.0.0.1:18082
start_backend posts 127.0.0.1:18083
start_backend feed 127.0.0.1:18084
start_daemon
wait_until_served
show_requests

if [ "${QUICKSTART_ONCE:-}" = 1 ]; then
  [ "$failures" -eq 0 ] || die "$failures of the answers above are not the expected ones"
  exit 0
fi
say_what_next
background tail -n 0 -F "$dir/headgate.log" 2>/dev/null
followed=$!
wait "$daemon" || true
daemon=
die "headgate ended by itself; see its log above"
