#!/usr/bin/env bash
# Proves the install step on a bare Debian: a minimal system made by debootstrap, this machine's Rust toolchain, the
# repository as a clone has it, and nothing else. Runs the README's first command, then its push and pop.
#
#     sudo tests/install/debootstrap.sh [directory]      (needs debootstrap, about 4 GB, about 10 minutes)
#
# Not part of `cargo test`: it needs root, mounts, and Debian's mirror. Mirror, apt settings and trusted
# certificates are this machine's.
set -euo pipefail

here=$(cd "$(dirname "$0")/../.." && pwd)
work=${1:-$(mktemp -d /var/tmp/queen-install.XXXXXX)}
suite=${SUITE:-bookworm}
root=$work/root
[ "$(id -u)" -eq 0 ] || { echo "needs root (chroot, mounts)" >&2; exit 1; }
command -v debootstrap >/dev/null || { echo "needs debootstrap: apt-get install debootstrap" >&2; exit 1; }
rustup_home=${RUSTUP_HOME:-$HOME/.rustup}
cargo_home=${CARGO_HOME:-$HOME/.cargo}

unmount() { for at in cargo/registry rustup dev/shm dev/pts dev sys proc; do umount -l "$root/$at" 2>/dev/null || true; done; }
trap unmount EXIT

step() { printf '\n== %s\n' "$*"; }
in_root() {
    env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin:/cargo/bin HOME=/root RUSTUP_HOME=/rustup CARGO_HOME=/cargo LANG=C.UTF-8 \
        chroot "$root" /bin/bash -euo pipefail -c "$1"
}

step "debootstrap $suite --variant=minbase"
mkdir -p "$root"
debootstrap --variant=minbase "$suite" "$root" >"$work/debootstrap.log" 2>&1 || { tail "$work/debootstrap.log"; exit 1; }
cp -r /etc/apt/apt.conf.d "$root/etc/apt/"
cp /etc/resolv.conf "$root/etc/resolv.conf"
mkdir -p "$root"/{rustup,cargo/registry,queen}
mount -t proc proc "$root/proc"
mount --rbind /sys "$root/sys"
mount --bind /dev "$root/dev"
mount -t tmpfs shm "$root/dev/shm"
mount --bind -o ro "$rustup_home" "$root/rustup"
mkdir -p "$root/cargo/bin"
cp -P "$cargo_home"/bin/* "$root/cargo/bin/"
for file in "$cargo_home"/config*; do [ ! -e "$file" ] || cp "$file" "$root/cargo/"; done
git -C "$here" archive HEAD | tar -x -C "$root/queen"

step "what is there: $(in_root 'dpkg -l | grep -c ^ii') packages"
in_root 'for tool in cc curl psql python3 sudo git; do command -v $tool || echo "no $tool"; done; ls /usr/lib/postgresql 2>/dev/null || echo "no PostgreSQL"'

step ".ci/setup"
time in_root 'cd /queen && .ci/setup'
step ".ci/setup again touches nothing"
in_root 'cd /queen && .ci/setup'
in_root 'ls /etc/postgresql/*/* 2>/dev/null && { echo "a system cluster was made"; exit 1; } || true'

cp /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/"
step "cargo build --release"
time in_root 'cd /queen && cargo build --release 2>&1 | tail -n 2'

step "run with no configuration; push; pop"
in_root '
    cd /queen
    start=$(date +%s%N)
    target/release/queen >/root/queen.log 2>&1 &
    queen=$!
    until curl -sf http://127.0.0.1:6632/health >/dev/null; do
        kill -0 $queen || { cat /root/queen.log; exit 1; }
        sleep 0.05
    done
    echo "ready after $(( ($(date +%s%N) - start) / 1000000 )) ms"
    curl -s http://127.0.0.1:6632/api/v1/push -d "{\"items\":[{\"queue\":\"orders\",\"payload\":{\"n\":1}}]}"; echo
    curl -s http://127.0.0.1:6632/api/v1/pop/queue/orders | tee /root/pop; echo
    grep -q "{\"n\":1}" /root/pop
    kill $queen
    wait $queen
    cat /root/queen.log
'
step "without PostgreSQL: one line with the remedy"
in_root '
    mv /usr/lib/postgresql /usr/lib/postgresql.away
    code=0
    PATH=/usr/bin:/bin QUEEN_DATA_DIR=/root/fresh /queen/target/release/queen >/root/queen.log 2>&1 || code=$?
    mv /usr/lib/postgresql.away /usr/lib/postgresql
    grep FATAL /root/queen.log
    [ "$code" -eq 1 ] && [ "$(grep -c FATAL /root/queen.log)" -eq 1 ] && grep -q "apt-get install" /root/queen.log
'
step "passed"
unmount
trap - EXIT
[ -n "${1:-}" ] || rm -rf --one-file-system "$work"
