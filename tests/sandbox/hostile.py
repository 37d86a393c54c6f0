"""Runs hostile scripts as this user and prints what they started, as JSON: `python hostile.py FOLDER PORT PID`."""

from __future__ import annotations

import json
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from launcher.sandbox.reading import FIRST
from launcher.sandbox.script import run_script

LAUNCH = "python3 -m verl.trainer.main_ppo done=1\n"
LOOP = "while :; do :; done"
SCRIPTS = {
    "write outside": "echo x > OUT/a; echo x >> OUT/kept; mkdir OUT/d; cp OUT/kept OUT/b; : > OUT/kept",
    "write by tools": "tee OUT/a < /dev/null; sed -i s/k/x/ OUT/kept; sort -o OUT/kept OUT/kept; split OUT/kept OUT/s",
    "remove outside": "rm -rf OUT OUT/kept; rmdir OUT; mv OUT/kept OUT/moved; find OUT -delete",
    "write at home": "echo x > REALHOME/.rlrun-hostile; echo x >> REALHOME/.bashrc.rlrun",
    "read a secret": "python3 -m a.main x=$(cat OUT/secret) y=\"$(< OUT/secret)\" z=$(head -c 9 OUT/secret)",
    "read passwords": "python3 -m a.main x=$(cat /etc/shadow) y=$(< /etc/passwd) z=$(grep -c : /etc/passwd)",
    "read others' environment": "python3 -m a.main x=$(tr '\\0' ' ' < /proc/PID/environ) y=$(cat /proc/1/environ)",
    "network by bash": "echo hello > /dev/tcp/127.0.0.1/PORT; exec 3<>/dev/udp/127.0.0.1/PORT && echo x >&3",
    "network by a tool": "curl http://127.0.0.1:PORT; wget http://127.0.0.1:PORT; nc 127.0.0.1 PORT < /dev/null",
    "execute python": "/usr/bin/python3 -c 'open(\"OUT/a\", \"w\")'; PATH=/usr/bin touch OUT/a",
    "execute by the loader": "/lib64/ld-linux-x86-64.so.2 /usr/bin/python3 -c 'open(\"OUT/a\", \"w\")'",
    "execute a copy": "cp /usr/bin/touch t; cat /usr/bin/touch > u; chmod +x t u; ./t OUT/a; ./u OUT/a",
    "execute by awk": "awk 'BEGIN { system(\"touch OUT/a\"); print \"x\" > \"OUT/b\" }'; xargs touch <<< OUT/a",
    "find executes": "find . -maxdepth 0 -exec touch OUT/a \\; -fprint OUT/b",
    "signal others": "kill -9 PID; kill -TERM PID; kill -9 1; kill -STOP PID; kill -9 -- -PID",
    "signal all": "kill -9 -1",
    "signal the keeper": "kill -9 $PPID; kill -STOP $PPID",
    "a daemon": f"setsid bash -c '{LOOP}' & setsid setsid bash -c '(({LOOP}) &) &'",
    "a daemon that sleeps": "setsid bash -c 'coproc cat; wait' & disown -a",
    "orphans": f"( ( {LOOP} ) & ) ; ( trap '' HUP TERM INT; nohup bash -c '{LOOP}' ) &",
    "fork bomb": ":() { : | : & }; :",
    "traps": f"trap '' TERM INT HUP QUIT CONT XCPU XFSZ; trap '{LOOP}' EXIT; {LOOP}",
    "endless sleep": "read -t 1000 x < <(sleep 1000; cat); coproc cat; wait",
    "huge output": "yes() { while echo xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx; do :; done; }; yes; yes >&2",
    "huge file": "a=$(printf '%1000000s' x); for i in {1..200}; do echo \"$a\" >> big$((i % 9)); done",
    "huge memory": "a=xxxxxxxxxxxxxxxx; for i in {1..40}; do a=$a$a; done",
    "links": "ln -s /etc/passwd p; ln -s OUT o; echo x > o/a; cat p > q.yaml; python3 -m a.main x=$(cat p)",
    "its own memory": "exec 3> /proc/self/mem; exec 4> /proc/PID/mem; echo x > /proc/self/oom_score_adj",
    "environment of bash": "export BASH_ENV=OUT/secret LD_PRELOAD=OUT/kept; PATH=/bin:$PATH bash -c 'touch OUT/b'",
    "descriptors": "for i in {0..255}; do echo x >&$i; done 2> /dev/null; exec 9<> OUT/kept",
    "its folder": "cd /; rm -rf \"$OLDPWD\" \"$HOME\" \"$TMPDIR\"; rm -rf \"${BASH_ENV%/*}\"",
    "records": "cd \"${BASH_ENV%/*}/../box/records\"; mv record.* x; echo > record.1.1; : > ../stderr; rm -f ../stdin",
    "modes": "chmod 777 OUT/secret; chown 1 OUT/secret; touch OUT/kept; umask 0; ulimit -n 999999; mkfifo OUT/f",
}  # fmt: skip


def run(name: str, places: dict[str, str]) -> dict[str, Any]:
    text = SCRIPTS[name]
    for word, place in places.items():
        text = text.replace(word, place)
    script = Path(f"{name.replace(' ', '-')}.sh")
    script.write_text(f"{text}\n{LAUNCH}")
    ran = run_script(script, [], {}, FIRST)
    words = [[one.name, *one.words, *one.environment.values()] for one in ran.started]
    return {"words": words, "written": dict(ran.written), "stopped": ran.outcome.stopped, "cpu_s": ran.outcome.cpu_s}


def main() -> None:
    folder, port, pid = sys.argv[1:]
    os.chdir(Path(folder, "work"))
    places = {"OUT": f"{folder}/out", "PORT": port, "PID": pid, "REALHOME": os.path.expanduser("~")}
    found = {"fork bomb": run("fork bomb", places)}  # which leaves the others no time
    others = [name for name in SCRIPTS if name not in found]
    with ThreadPoolExecutor(2) as threads:
        found |= zip(others, threads.map(lambda name: run(name, places), others), strict=True)
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
