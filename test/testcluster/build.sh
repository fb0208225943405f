#!/bin/sh
# Builds bin/testcluster unless the binary there was built from the same sources by the same Go.
# The first build takes minutes (a whole kube-apiserver); several callers at once share one.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
bin=$root/bin/testcluster
mkdir -p "$root/bin"

exec 9>"$bin.lock"
flock 9

version=$(sed -n 's/^\tk8s\.io\/kubernetes \(v[0-9.]*\)$/\1/p' "$here/go.mod")
minor=${version#v1.}
minor=${minor%%.*}
v=k8s.io/component-base/version
set -- -trimpath -buildvcs=false -ldflags \
    "-s -w -X $v.gitVersion=$version -X $v.gitMajor=1 -X $v.gitMinor=$minor -X $v.gitTreeState=clean"

cd "$here"
stamp=$({
    echo "$@"
    go version
    find . -type f \( -name '*.go' -o -name 'go.*' \) ! -name '*_test.go' | LC_ALL=C sort | xargs sha256sum
} | sha256sum)
if [ -x "$bin" ] && [ "$(cat "$bin.stamp" 2>/dev/null)" = "$stamp" ]; then
    exit 0
fi

echo "building bin/testcluster (minutes, the first time)" >&2
# Its own flags only: a GOFLAGS with -race would compile the API server a second time.
CGO_ENABLED=0 GOFLAGS='' nice go build "$@" -o "$bin.new" .
mv "$bin.new" "$bin"
echo "$stamp" >"$bin.stamp"
