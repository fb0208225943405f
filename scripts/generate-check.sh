#!/usr/bin/env bash
# Fails when `make generate` changes a file: someone edited a generated page by
# hand, or its source without running it. Works on a tree with other open changes:
# it compares the tree with itself, before and after.
set -euo pipefail
cd "$(dirname "$0")/.."

fingerprint() {
  git ls-files -co --exclude-standard -z | sort -zu | while IFS= read -r -d '' file; do
    [ ! -f "$file" ] || sha256sum "$file"
  done
}

before=$(fingerprint)
make generate
after=$(fingerprint)
if ! diff <(echo "$before") <(echo "$after") >/dev/null; then
  echo "generate-check: these files are not what 'make generate' writes; it has just rewritten them:" >&2
  diff <(echo "$before") <(echo "$after") | sed -n 's/^[<>] [0-9a-f]*  /  /p' | sort -u >&2
  exit 1
fi
