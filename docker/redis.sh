#!/bin/sh
# Starts the server given as arguments, with the password in /password/redis. Without REDIS_PASSWORD
# the first start chooses a random one, so there is no default password.
set -eu
file=/password/redis
# With new volumes, no permit that was granted earlier can still be held.
is_new=
if [ ! -e "$file" ] && [ -z "$(ls -A /data 2>/dev/null)" ]; then is_new=yes; fi
umask 022 # the nodes run as another user; only they share the volume
if [ -n "${REDIS_PASSWORD:-}" ]; then
    case $REDIS_PASSWORD in
    *[!A-Za-z0-9._~-]*)
        echo "REDIS_PASSWORD: letters, digits and . _ ~ - are allowed, as it becomes part of a URL" >&2
        exit 1
        ;;
    esac
    printf %s "$REDIS_PASSWORD" >"$file"
elif [ ! -s "$file" ]; then
    head -c 32 /dev/urandom | od -An -v -tx1 | tr -d ' \n' >"$file.new"
    mv "$file.new" "$file"
fi
call() { # sends a command, through a pipe, as the password is in it
    printf 'AUTH %s\n%s\n' "$(cat "$file")" "$1" | valkey-cli
}
mark_as_new() { # so that nodes need not wait: see semaphore_middleware/core/lua/begin_epoch.lua
    until run_id=$(call 'INFO server' | tr -d '\r' | grep '^run_id:'); do sleep 0.1; done
    call "HSET {semaphore}:epoch started_empty ${run_id#run_id:}"
}
if [ "$is_new" ]; then
    echo "The volumes are new, so nodes need not wait for permits that were granted before." >&2
    mark_as_new >/dev/null 2>&1 &
fi

program=$1
shift
# The configuration is its standard input: a command line is visible to everybody who may list processes.
exec docker-entrypoint.sh "$program" - "$@" <<END
requirepass $(cat "$file")
END
