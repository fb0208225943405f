#!/usr/bin/env bash
# Builds dist/headgate_<version>_{amd64,arm64}.{deb,rpm}, byte for byte the same wherever and whenever it is run on one commit.
#
#   ARCHES="amd64"            only these
#   PACKAGERS="deb"           only these
#   PACKAGE_VERSION=1.2.3     the version; without it, it comes from the tag: v1.2.3 is 1.2.3, and a commit behind it 1.2.3+4.gabcdef
#                             (0.0.0+… where there is no tag)
#   SOURCE_DATE_EPOCH=...     the time in all files; without it, that of the commit
#   NFPM=path                 a built nfpm, to save a minute
set -euo pipefail
cd "$(dirname "$0")/.."
umask 022
export TZ=UTC LC_ALL=C

version_of_tag() {
  local described
  described=$(git describe --tags --long --match 'v[0-9]*' 2>/dev/null) || described="v0.0.0-$(git rev-list --count HEAD)-g$(git rev-parse --short=12 HEAD)"
  sed -E 's/^v//; s/-0-g[0-9a-f]+$//; s/-([0-9]+)-(g[0-9a-f]+)$/+\1.\2/' <<<"$described"
}

if [ -z "${PACKAGE_VERSION:-}" ]; then PACKAGE_VERSION=$(version_of_tag); fi
if [ -z "${SOURCE_DATE_EPOCH:-}" ]; then SOURCE_DATE_EPOCH=$(git log -1 --format=%ct); fi
export PACKAGE_VERSION SOURCE_DATE_EPOCH
export CGO_ENABLED=0 GOFLAGS="-trimpath -buildvcs=false"
out=build/package
rm -rf "$out"
mkdir -p "$out" dist

binary() { # path architecture
  GOOS=linux GOARCH=$2 go build -ldflags "-s -w -X main.version=$PACKAGE_VERSION" -o "$1" ./cmd/headgate
}

pages() {
  "$out/host" dev man --out "$out/share"
  gzip -9n "$out"/share/man/man1/*.1
}

changelog() {
  echo "headgate ($PACKAGE_VERSION) stable; urgency=medium"
  echo
  local file
  for file in changes/*.md; do
    if [ "$file" != changes/README.md ]; then
      { printf -- '- '; tr '\n' ' ' <"$file"; } | fold -s -w 74 | sed 's/ *$//' | sed '1s/^- /  * /; 1!s/^/    /'
      echo
    fi
  done
  echo
  echo " -- $(sed -n 's/^maintainer: //p' packaging/nfpm.yaml)  $(date -u -R -d "@$SOURCE_DATE_EPOCH")"
}

# Of every module that is linked in: its licence must go with the binary.
licenses() {
  go list -deps -f '{{with .Module}}{{if .Version}}{{.Path}} {{.Version}} {{.Dir}}{{end}}{{end}}' ./cmd/headgate | sort -u |
    while read -r path version dir; do
      local file
      for file in "$dir"/LICENSE* "$dir"/LICENCE* "$dir"/COPYING* "$dir"/NOTICE*; do
        [ -f "$file" ] || continue
        printf '==== %s %s: %s\n\n' "$path" "$version" "${file##*/}"
        cat "$file"
        echo
      done
    done
}

binary "$out/host" "$(go env GOHOSTARCH)"
pages
changelog | gzip -9n >"$out/changelog.gz"
licenses | gzip -9n >"$out/third-party-licenses.gz"
for ARCH in ${ARCHES:-amd64 arm64}; do
  export ARCH
  mkdir -p "$out/$ARCH"
  if [ "$ARCH" = "$(go env GOHOSTARCH)" ]; then
    cp "$out/host" "$out/$ARCH/headgate"
  else
    binary "$out/$ARCH/headgate" "$ARCH"
  fi
  for packager in ${PACKAGERS:-deb rpm}; do
    ${NFPM:-go tool -modfile=tools/go.mod nfpm} package -f packaging/nfpm.yaml -p "$packager" -t "dist/headgate_${PACKAGE_VERSION}_$ARCH.$packager"
  done
done
