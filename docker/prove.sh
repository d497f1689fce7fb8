#!/usr/bin/env bash
# Builds the dashboard's image and runs it as docs/docker.md says, on a Debian machine without a Docker engine and without
# an image registry: `make image`, as root. It needs buildah, podman, runc and mmdebstrap, which it installs.
# `docker/prove.sh training` also builds the image for training, several gigabytes, and trains and compiles in it.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

TOKEN=$(openssl rand -hex 24)
PORT=${PORT:-18642}
WORK=$(mktemp -d)
PODMAN=(podman --storage-driver=vfs --root "$WORK/store" --runroot "$WORK/run" --runtime=runc --cgroup-manager=cgroupfs)
BUILDAH=(buildah --storage-driver=vfs --root "$WORK/store" --runroot "$WORK/run")
trap '"${PODMAN[@]}" rm --force --all >/dev/null 2>&1; rm -rf "$WORK"' EXIT

for tool in buildah podman runc mmdebstrap openssl curl; do
    command -v "$tool" >/dev/null || apt-get install -qq -y --no-install-recommends buildah podman runc mmdebstrap openssl curl >/dev/null
done

# The same Dockerfile; only the base differs, which is Debian with its own Python instead of the one from a registry.
# As in every slim image: no manuals, no other languages, and no Perl, which is only recommended, or moves /bin to /usr/bin.
without=(--aptopt='APT::Install-Recommends "false"' --include=usr-is-merged
    --hook-dir=/usr/share/mmdebstrap/hooks/merged-usr)
for each in man doc info locale lintian; do
    without+=("--dpkgopt=path-exclude=/usr/share/$each/*")
done
packages=python3,python3-venv,ca-certificates
[[ ${1:-} = training ]] && packages+=,python3-dev  # torch.compile needs Python's headers, which `python:3.11-slim` has
mmdebstrap --quiet --variant=minbase --include=$packages "${without[@]}" bookworm "$WORK/base.tar"
"${PODMAN[@]}" import --quiet "$WORK/base.tar" localhost/base:bookworm >/dev/null
rm "$WORK/base.tar"
build() {
    "${BUILDAH[@]}" bud --isolation=chroot --format docker --build-arg PYTHON_IMAGE=localhost/base:bookworm \
        --volume /etc/ssl/certs:/etc/ssl/certs:ro "$@" . >"$WORK/build.log" 2>&1 || { tail -30 "$WORK/build.log"; exit 1; }
}
build --tag localhost/hookcore

limits=(--ulimit nofile=4096:4096 --ulimit nproc=1024:1024)  # podman's own are above those of some machines
"${PODMAN[@]}" run --detach --name dashboard --network=host "${limits[@]}" \
    --read-only --tmpfs /tmp --cap-drop=all --security-opt=no-new-privileges --memory 1g \
    --env HOOKCORE_PORT="$PORT" --env HOOKCORE_TOKEN="$TOKEN" localhost/hookcore >/dev/null 2>&1
for _ in $(seq 50); do
    "${PODMAN[@]}" healthcheck run dashboard >/dev/null 2>&1 && break
    sleep 0.2
done

check() { echo "$1"; shift; "$@" || { echo "FAILED: $*" >&2; "${PODMAN[@]}" logs dashboard >&2; exit 1; }; }
status_of() { curl -s -o /dev/null -w '%{http_code}' "$@" "http://127.0.0.1:$PORT/api/v1/runs"; }
ask() { curl -s -H "Authorization: Bearer $TOKEN" "http://127.0.0.1:$PORT/api/v1/$1"; }
within() { "${PODMAN[@]}" exec dashboard "$@"; }
pid=$("${PODMAN[@]}" inspect --format '{{.State.Pid}}' dashboard)

check "it is healthy" "${PODMAN[@]}" healthcheck run dashboard
check "it asks for the token" test "$(status_of)" = 401
check "it lets the token in" test "$(status_of -H "Authorization: Bearer $TOKEN")" = 200
check "it is no root" test "$(within id -u)" = 10001
check "it has no capability" grep -q 'CapEff:[[:space:]]*0000000000000000' "/proc/$pid/status"
check "its files are read-only" test "$(within sh -c 'touch /opt/hookcore/x 2>&1 || echo no' | tail -1)" = no
check "it may write what it keeps" within sh -c 'touch /data/x && rm /data/x'
check "there is no torch in it" test "$(within python -c 'import importlib.util as u; print(u.find_spec("torch"))')" = None
check "a training sends to it" env HOOKCORE_URL="http://127.0.0.1:$PORT" HOOKCORE_TOKEN="$TOKEN" \
    .venv/bin/hookcore demo --steps 60 --most-per-s 0 --budget none >/dev/null
run=$(ask runs | python3 -c 'import json, sys; print(json.load(sys.stdin)["runs"][0]["id"])')
check "it keeps the run" within sh -c 'ls /data/*.hookcore/run.json'
check "it draws a figure" grep -q '"data"' <(ask "figure?run=$run&chart=series&tap=0&stat=rms")
check "it answers with an Arrow table" test "$(ask "series?run=$run&tap=0&stat=rms&format=arrow" | head -c 4 | xxd -p)" = ffffffff
check "it serves the page of the run" grep -q '</html>' <(curl -s -H "Authorization: Bearer $TOKEN" "http://127.0.0.1:$PORT/runs/$run")
began=$(date +%s%N)
"${PODMAN[@]}" stop --time 10 dashboard >/dev/null 2>&1
echo "it stopped after $((($(date +%s%N) - began) / 1000000)) ms"
check "it ended well" test "$("${PODMAN[@]}" inspect --format '{{.State.ExitCode}}' dashboard)" = 0
if [[ ${1:-} = training ]]; then
    build --target training --tag localhost/hookcore-training
    cat >"$WORK/train.py" <<'SCRIPT'
import torch
from torch import nn

model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1))
optimizer = torch.optim.Adam(model.parameters())
for _ in range(200):
    batch = torch.randn(16, 8)
    loss = (model(batch) - batch[:, :1]).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print("trained with CUDA", torch.version.cuda, "and compiled", torch.compile(model)(batch).shape)
SCRIPT
    chmod 755 "$WORK"
    "${PODMAN[@]}" run --rm --network=none "${limits[@]}" --volume "$WORK/train.py:/work/train.py:ro" \
        localhost/hookcore-training train.py 2>&1 | tee "$WORK/trained.log"
    check "the image for training trains, is watched, and compiles" \
        test "$(grep -c -e '^trained with CUDA 1.* and compiled' -e '^hookcore: http.*/runs/' "$WORK/trained.log")" = 2
fi
"${PODMAN[@]}" images --format '{{.Repository}} {{.Size}}' | grep hookcore
