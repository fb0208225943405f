#!/usr/bin/env bash
# Runs govulncheck against the vulnerability database in its form as a Go module,
# so that the module proxy is the only thing on the network it needs.
#
# Fails on a vulnerability of a dependency that our code really calls. Those of
# the standard library are printed as warnings: the toolchain is the builder's.
#
#   VULNDB=latest scripts/vulncheck.sh    the newest database, not the pinned one
set -euo pipefail
cd "$(dirname "$0")/.."

tool() { go tool -modfile=tools/go.mod "$@"; }
die() { printf 'vulncheck: %s\n' "$*" >&2; exit 1; }

case "${VULNDB:-pinned}" in
  pinned) version=$(go list -modfile=tools/go.mod -m -f '{{.Version}}' golang.org/x/vulndb) ;;
  *) version=$VULNDB ;;
esac
source_dir=$(go mod download -modfile=tools/go.mod -json "golang.org/x/vulndb@$version" |
  sed -n 's/^\t"Dir": "\(.*\)",\{0,1\}$/\1/p')
[ -d "$source_dir/data/osv" ] || die "golang.org/x/vulndb@$version holds no data/osv"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
echo "vulncheck: database $version"
tool indexdb -vulns "$source_dir/data/osv" -out "$work/db"
tool govulncheck -db "file://$work/db" -format json ./... >"$work/findings.json"
(cd tools && go run ./vulnreport) <"$work/findings.json"
