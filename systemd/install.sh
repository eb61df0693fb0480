#!/bin/sh
# Installs edged on a box, or removes it; `make install` and `make uninstall` run this script. Environment variables:
#
#   PREFIX   the folder for the command and the units: /usr, or /usr/local
#   APP      the folder of the virtual environment: /opt/edged
#   DESTDIR  a folder to use as the box's root; the script changes nothing outside it, and starts no service
#   PYTHON   the interpreter of the environment: python3, 3.10 or newer
#   WHEELS   a folder with wheels of edged and its dependencies, for an installation without network
#   EXTRAS   extras to install besides ONNX Runtime: openvino,media,mqtt,tracking
#   PURGE    1: uninstall also removes models, engines, configuration and the user
set -eu

PREFIX=${PREFIX:-/usr} APP=${APP:-/opt/edged} DESTDIR=${DESTDIR:-} PYTHON=${PYTHON:-python3}
WHEELS=${WHEELS:-} EXTRAS=${EXTRAS-openvino,media,mqtt,tracking} PURGE=${PURGE:-}
here=$(dirname "$(realpath "$0")")
units=$PREFIX/lib/systemd/system
all="edged.service edged.socket edged-operate.socket edged-refresh.service edged-refresh.path"

fail() {
    echo "edged: $1" >&2
    exit 1
}

require_rights() {
    [ -n "$DESTDIR" ] || [ "$(id -u)" = 0 ] || fail "only root can change a service: use sudo, or set DESTDIR"
    case $DESTDIR in
        '' | /*) ;;
        *) fail "DESTDIR=$DESTDIR is not an absolute path" ;;
    esac
    case $APP in
        /*) ;;
        *) fail "APP=$APP is not an absolute path" ;;
    esac
    [ ! -e "$DESTDIR$APP" ] || [ -e "$DESTDIR$APP/pyvenv.cfg" ] ||
        fail "$DESTDIR$APP exists and is not a virtual environment; remove it, or choose another APP"
}

# Whether this installs to the running box, and the box runs systemd.
is_live() { [ -z "$DESTDIR" ] && [ -d /run/systemd/system ]; }

# The Python version; an environment with another version than PYTHON's is created again.
version_of() { "$1" -c 'import sys; print(sys.version_info[:2])' 2>/dev/null; }

make_environment() {
    "$PYTHON" -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null ||
        fail "$PYTHON is not Python 3.10 or newer: install it, or set PYTHON=/path/to/python3"
    "$PYTHON" -c 'import ensurepip, venv' 2>/dev/null ||
        fail "$PYTHON cannot create a virtual environment: sudo apt install python3-venv, then run this again"
    # JetPack's TensorRT is a Debian package and not in pip's index.
    sees=
    if "$PYTHON" -c 'import importlib.util as i, sys; sys.exit(i.find_spec("tensorrt") is None)' 2>/dev/null; then
        sees=--system-site-packages
    fi
    if [ "$(version_of "$DESTDIR$APP/bin/python")" != "$(version_of "$PYTHON")" ]; then
        rm -rf "$DESTDIR${APP:?}"
        # shellcheck disable=SC2086 # one option, or none
        "$PYTHON" -m venv $sees "$DESTDIR$APP"
    fi
}

install_package() {
    pip="$DESTDIR$APP/bin/python -m pip --disable-pip-version-check --quiet install --no-compile"
    # The tracking library requires an OpenCV that needs a display. Install it without dependencies, to keep edged's OpenCV.
    case ,$EXTRAS, in
        *,tracking,*) trackers='trackers>=2.6,<3' ;;
        *) trackers= ;;
    esac
    [ -z "$EXTRAS" ] || EXTRAS="[$EXTRAS]"
    if [ -n "$WHEELS" ]; then
        [ -d "$WHEELS" ] || fail "folder WHEELS=$WHEELS does not exist"
        # shellcheck disable=SC2086 # words of a command
        $pip --no-index --find-links "$WHEELS" "edged$EXTRAS"
        # A wheel of the same version may have other contents.
        # shellcheck disable=SC2086
        $pip --no-index --find-links "$WHEELS" --no-deps --force-reinstall edged $trackers
    else
        # shellcheck disable=SC2086
        $pip --constraint "$here/../constraints.txt" "$here/..$EXTRAS"
        # shellcheck disable=SC2086
        [ -z "$trackers" ] || $pip --constraint "$here/../constraints.txt" --no-deps $trackers
    fi
}

# Scripts contain the path of their interpreter. Remove DESTDIR from it.
settle_paths() {
    if [ -n "$DESTDIR" ]; then
        grep -rlIF -- "$DESTDIR" "$DESTDIR$APP/bin" "$DESTDIR$APP/pyvenv.cfg" | while read -r file; do
            sed -i "s|$DESTDIR||g" "$file"
        done
    fi
    # The service cannot write there. Without this it would compile every module at every start.
    "$DESTDIR$APP/bin/python" -m compileall -q -j 0 -s "$DESTDIR" "$DESTDIR$APP/lib" >/dev/null || true
}

install_files() {
    install -d "$DESTDIR$PREFIX/bin" "$DESTDIR/etc/edged"
    ln -sfn "$APP/bin/edged" "$DESTDIR$PREFIX/bin/edged"
    for unit in $all; do
        install -D -m 644 "$here/$unit" "$DESTDIR$units/$unit"
        sed -i "s|/usr/bin/edged|$PREFIX/bin/edged|" "$DESTDIR$units/$unit"
    done
    for kind in sysusers.d tmpfiles.d; do
        install -D -m 644 "$here/$kind/edged.conf" "$DESTDIR$PREFIX/lib/$kind/edged.conf"
    done
    [ -e "$DESTDIR/etc/edged/edged.toml" ] || install -m 644 "$here/edged.toml" "$DESTDIR/etc/edged/edged.toml"
}

tell_systemd() {
    systemd-sysusers "$PREFIX/lib/sysusers.d/edged.conf"
    systemd-tmpfiles --create "$PREFIX/lib/tmpfiles.d/edged.conf"
    systemctl daemon-reload
    systemctl try-restart edged.service
    systemctl is-enabled --quiet edged.service || systemctl is-enabled --quiet edged.socket ||
        echo "edged is installed: systemctl enable --now edged"
}

remove() {
    if is_live; then
        systemctl disable --now edged.socket edged.service edged-refresh.path 2>/dev/null || true
    fi
    [ "$(readlink "$DESTDIR$PREFIX/bin/edged")" != "$APP/bin/edged" ] || rm -f "$DESTDIR$PREFIX/bin/edged"
    for unit in $all; do
        rm -f "$DESTDIR$units/$unit"
    done
    rm -f "$DESTDIR$PREFIX/lib/sysusers.d/edged.conf" "$DESTDIR$PREFIX/lib/tmpfiles.d/edged.conf"
    rm -rf "$DESTDIR${APP:?}"
    if [ "$PURGE" = 1 ]; then
        # A folder on a disk of its own is emptied, but cannot be removed while it is mounted.
        for folder in /var/lib/edged /var/cache/edged /etc/edged /run/edged; do
            rm -rf "$DESTDIR$folder" || true
        done
    fi
    if is_live; then
        systemctl daemon-reload
        [ "$PURGE" != 1 ] || { userdel edged 2>/dev/null; groupdel edged-operate 2>/dev/null; } || true
    fi
    [ "$PURGE" = 1 ] || echo "models, engines and configuration are kept; PURGE=1 removes them"
}

umask 022
require_rights
case ${1:-} in
    install)
        make_environment
        install_package
        settle_paths
        install_files
        ! is_live || tell_systemd
        ;;
    uninstall) remove ;;
    *) fail "usage: install.sh install|uninstall" ;;
esac
