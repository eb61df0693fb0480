#!/bin/sh
# Puts edged on a box, or takes it off: what `make install` and `make uninstall` run. Settings come by the environment:
#
#   PREFIX   where the command and the units go: /usr, or /usr/local
#   APP      the folder of the virtual environment: /opt/edged
#   DESTDIR  a tree that stands for the box's root; nothing outside it is touched, and no service is told
#   PYTHON   the interpreter that the environment is made with: python3, 3.10 or newer
#   WHEELS   a folder of wheels, edged's among them, to install from without any network
#   EXTRAS   what to install beside the runtime that every box gets: openvino,media,mqtt,tracking
#   PURGE    1: uninstall removes models, engines, configuration and the user as well
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
        *) fail "DESTDIR=$DESTDIR is not absolute; give its whole path" ;;
    esac
    case $APP in
        /*) ;;
        *) fail "APP=$APP is not absolute; give its whole path" ;;
    esac
    [ ! -e "$DESTDIR$APP" ] || [ -e "$DESTDIR$APP/pyvenv.cfg" ] ||
        fail "$DESTDIR$APP is there and is no virtual environment; remove it, or choose another APP"
}

# Whether this is about the box that we run on, and systemd runs it.
is_live() { [ -z "$DESTDIR" ] && [ -d /run/systemd/system ]; }

# What the environment's own interpreter must agree on with PYTHON, or it is made anew.
version_of() { "$1" -c 'import sys; print(sys.version_info[:2])' 2>/dev/null; }

make_environment() {
    "$PYTHON" -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null ||
        fail "$PYTHON is not Python 3.10 or newer: install it, or name another with PYTHON=/path/to/python3"
    "$PYTHON" -c 'import ensurepip, venv' 2>/dev/null ||
        fail "$PYTHON cannot make a virtual environment: sudo apt install python3-venv, then run this again"
    # JetPack's TensorRT is a Debian package that pip does not have.
    sees=
    if "$PYTHON" -c 'import importlib.util as i, sys; sys.exit(i.find_spec("tensorrt") is None)' 2>/dev/null; then
        sees=--system-site-packages
    fi
    if [ "$(version_of "$DESTDIR$APP/bin/python")" != "$(version_of "$PYTHON")" ]; then
        rm -rf "$DESTDIR${APP:?}"
        # shellcheck disable=SC2086 # an option or none
        "$PYTHON" -m venv $sees "$DESTDIR$APP"
    fi
}

install_package() {
    pip="$DESTDIR$APP/bin/python -m pip --disable-pip-version-check --quiet install --no-compile"
    # The library that follows objects requires an OpenCV that needs a display; ours must stay, so it comes without.
    case ,$EXTRAS, in
        *,tracking,*) trackers='trackers>=2.6,<3' ;;
        *) trackers= ;;
    esac
    [ -z "$EXTRAS" ] || EXTRAS="[$EXTRAS]"
    if [ -n "$WHEELS" ]; then
        [ -d "$WHEELS" ] || fail "there is no folder WHEELS=$WHEELS"
        # shellcheck disable=SC2086 # words of a command
        $pip --no-index --find-links "$WHEELS" "edged$EXTRAS"
        # The same version may have other contents.
        # shellcheck disable=SC2086
        $pip --no-index --find-links "$WHEELS" --no-deps --force-reinstall edged $trackers
    else
        # shellcheck disable=SC2086
        $pip --constraint "$here/../constraints.txt" "$here/..$EXTRAS"
        # shellcheck disable=SC2086
        [ -z "$trackers" ] || $pip --constraint "$here/../constraints.txt" --no-deps $trackers
    fi
}

# Scripts name their interpreter as it is called here; on the box it has another name.
settle_paths() {
    if [ -n "$DESTDIR" ]; then
        grep -rlIF -- "$DESTDIR" "$DESTDIR$APP/bin" "$DESTDIR$APP/pyvenv.cfg" | while read -r file; do
            sed -i "s|$DESTDIR||g" "$file"
        done
    fi
    # The service cannot write there, and would compile everything at every start.
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
        rm -rf "$DESTDIR/var/lib/edged" "$DESTDIR/var/cache/edged" "$DESTDIR/etc/edged" "$DESTDIR/run/edged"
    fi
    if is_live; then
        systemctl daemon-reload
        [ "$PURGE" != 1 ] || { userdel edged 2>/dev/null; groupdel edged-operate 2>/dev/null; } || true
    fi
    [ "$PURGE" = 1 ] || echo "models, engines and configuration are still there; PURGE=1 removes them"
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
    *) fail "say install or uninstall" ;;
esac
