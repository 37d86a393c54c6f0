"""Scripts that would hang, flood or break a reader: each ends soon, with a line, and without a traceback."""

from __future__ import annotations

import resource
import socket
import subprocess
from pathlib import Path

import pytest

from launcher.scripts.read import read_script

DOUBLING = "a=xxxxxxxxxxxxxxxx\n" + "a=$a$a\n" * 64 + "python3 -m verl.trainer.main_ppo a=$a\n"
HOSTILE = {
    "endless loop": "while true; do\n  x=1\ndone\n",
    "endless loop of launches": "while true; do python3 -m verl.trainer.main_ppo a=1; done\n",
    "endless c loop": "for ((;;)); do :; done\n",
    "until false": "until false; do sleep 1; done\n",
    "loops in loops": "for a in {1..1000}; do for b in {1..1000}; do for c in {1..1000}; do :; done; done; done\n",
    "fork bomb": ":(){ :|:& };:\n",
    "recursion": "f() { f; }\nf\n",
    "mutual recursion": "f() { g; }\ng() { f; f; }\nf\n",
    "recursion that branches": "f() { f; f; f; }\nf\n",
    "doubling": DOUBLING,
    "doubling array": "a=(1 2)\n" + 'a=("${a[@]}" "${a[@]}")\n' * 40,
    "doubling function": "".join(f"f{n}() {{ f{n + 1}; f{n + 1}; }}\n" for n in range(25)) + "f25() { :; }\nf0\n",
    "doubling substitution": "a='$(echo x)'\n" + 'a="$a$a"\n' * 30 + 'eval "echo $a"\n',
    "big range": "for i in {1..999999999}; do :; done\n",
    "braces of braces": "echo " + "{a,b}" * 64 + "\n",
    "deep braces": "echo " + "{a," * 500 + "b" + "}" * 500 + "\n",
    "deep substitution": "echo " + "$(echo " * 500 + "x" + ")" * 500 + "\n",
    "deep parameter": "echo " + "${a:-" * 500 + "x" + "}" * 500 + "\n",
    "deep arithmetic": "echo $((" + "(" * 2000 + "1" + ")" * 2000 + "))\n",
    "deep groups": "{ " * 2000 + ":; " + "}; " * 2000 + "\n",
    "deep subshells": "(" * 3000 + ":" + ")" * 3000 + "\n",
    "deep ifs": "if :; then\n" * 1000 + ":\n" + "fi\n" * 1000,
    "deep quotes": "echo " + '"$(echo ' * 200 + "x" + ')"' * 200 + "\n",
    "deep bash": "bash -c '" + "bash -c $0 " * 100 + "'\n",
    "bash itself": 'bash "$0"\n',
    "source itself": '. "$0"\n',
    "eval itself": 'x=\'eval "$x"\'\neval "$x"\n',
    "pattern": "x=" + "a" * 5000 + "\necho ${x//" + "*a" * 50 + "b/}\n",
    "regular expression": "x=" + "a" * 4000 + "b\n[[ $x =~ ^(a+)+$ ]] && echo yes\n",
    "prefix": "x=$(printf '%5000s' a)\necho ${x##*[!b]*c}\n",
    "exponent": "echo $((9 ** 999999999999))\n",
    "shift": "echo $((1 << 99999999999))\n",
    "arithmetic that names itself": "a=b b=a\necho $((a))\n",
    "long line": "python3 -m verl.trainer.main_ppo " + "a=1 " * 200_000 + "\n",
    "long line of options": "python3 -m verl.trainer.main_ppo " + "--k=1 foo " * 90_000 + "\n",
    "long line of options and brackets": "python3 -m verl.trainer.main_ppo " + "--x=1 b[]" * 3_000 + "\n",
    "assignments without fi": "if x; then a=1 b=2\n" * 1000,
    "many lines": "a=1\n" * 200_000,
    "many opens": "".join(f"a{n}=$(date +{n})\n" for n in range(20_000)),
    "many documents": "cat <<E\nx\nE\n" * 50_000,
    "open quote": 'echo "' + "x" * 500_000,
    "open document": "cat <<EOF\n" + "x\n" * 100_000,
    "open brackets": "$(" * 100_000,
    "open braces": "${" * 100_000,
    "backticks": "`" * 99_999,
    "backslashes": "\\" * 500_000,
    "ampersands": "a &\n" * 100_000,
    "dollars": "echo " + "$" * 500_000,
    "pipes": ":|" * 50_000 + ":\n",
    "ands": ": && " * 50_000 + ":\n",
    "cases": "case x in " + "a) ;; " * 100_000 + "esac\n",
    "printf width": "printf '%999999999d' 1\nx=$(printf '%999999999s' a)\n",
    "printf words": "x=$(printf '%s%s' {1..9999})\n",
    "seq": "for i in $(seq 1 99999999); do :; done\n",
    "output": 'while true; do echo xxxxxxxxxxxxxxxxxxxx; done > "$f"\nx=$(while :; do echo xxxxxxxxxxxx; done)\n',
    "getopts": "while getopts a o -a -a; do :; done\n",
    "substring": "x=abc\necho ${x:99999999999999999999:-99999999999999}\n",
    "index": "a[99999999999]=1\na[-5]=2\necho ${a[@]: -99999}\n",
    "reference to itself": "declare -n a=a\na=1\necho $a\n",
    "yaml": "cat > r.yaml <<'E'\na: &a [x,x,x,x,x,x,x,x,x]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a]\nenv_vars: *b\nE\n"
    "ray job submit --runtime-env=r.yaml -- python3 -m verl.trainer.main_ppo a=1\n",
    "sed": "x=$(echo " + "a" * 3000 + " | sed -E 's/(a|aa)+$b/x/')\n",
    "open double brackets": "[[ x " * 60_000,
    "open groups after !": "! { " * 40_000,
    "a loop of words that count": "lines | while read x; do n=$((n+1)); " + "echo for let (( " * 20_000 + "; done\n",
    "tr": "x=$(echo a | tr '\\000-\\377' 'a')\n",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_script_ends(tmp_path, name):
    path = tmp_path / "run.sh"
    path.write_text(HOSTILE[name])
    before = resource.getrusage(resource.RUSAGE_SELF)
    reading = read_script(path)
    used = resource.getrusage(resource.RUSAGE_SELF)
    assert used.ru_utime - before.ru_utime < 20
    assert used.ru_maxrss - before.ru_maxrss < 600_000  # KB
    assert all(part.line.startswith(f"{path}:") for part in (*reading.refused, *reading.open))


UNREADABLE = {
    "large": (b"a" * ((1 << 20) + 1), 1, "larger than 1 MB"),
    "NUL": (b"a=1\nb=\x002\n", 2, "NUL"),
    "UTF-16": ("a=1\n".encode("utf-16"), 1, "UTF-16"),
    "cp1252": (b"a=1\n# caf\xe9\n", 2, "UTF-8"),
    "CRLF": (b"a=1\r\nb=2\r\n", 1, "CRLF"),
    "private use": ("a=1\nb=\U000f0001\n".encode(), 2, "private use"),
}


@pytest.mark.parametrize("name", UNREADABLE)
def test_a_file_that_is_no_script_is_refused_with_its_line(tmp_path, name):
    content, line, reason = UNREADABLE[name]
    path = tmp_path / "run.sh"
    path.write_bytes(content)
    reading = read_script(path)
    assert [part.line for part in reading.refused] == [f"{path}:{line}"]
    assert reason in reading.refused[0].reason
    assert not reading.launches


@pytest.mark.parametrize(("text", "line"), [
    ("python3 -m x.main a=1\nwhile true; do\n  x=1\ndone\n", 2),
    ("f() {\n  f\n}\nf\n", 2),
    ("a=1\n\n" + DOUBLING, 17),  # 16 characters, doubled 14 times
    ("a=1\nif true; then\n", 2),
    ("a=1\necho 'x\n", 2),
    ("set -u\na=1\npython3 -m x.main a=$b\n", 3),
    ("a=1\n: ${1:?usage}\n", 2),
])  # fmt: skip
def test_a_refusal_names_the_line(tmp_path, text, line):
    path = tmp_path / "run.sh"
    path.write_text(text)
    assert [part.line for part in read_script(path).refused] == [f"{path}:{line}"]


def test_a_missing_file_and_a_folder_are_refused(tmp_path):
    assert "No such file" in read_script(tmp_path / "none.sh").refused[0].reason
    assert read_script(tmp_path).refused


def test_nothing_is_executed_and_nothing_is_written(monkeypatch):
    def refuse(*arguments: object, **options: object) -> None:
        raise AssertionError("a script must not start or open anything")

    monkeypatch.setattr(subprocess.Popen, "__init__", refuse)
    monkeypatch.setattr(socket, "socket", refuse)
    for name in ("write_text", "write_bytes", "mkdir", "unlink", "rename"):
        monkeypatch.setattr(Path, name, refuse)
    path = Path(__file__).parent / "cases" / "heredoc_runtime_env.sh"
    before = sorted(path.parent.iterdir())
    reading = read_script(path)
    assert len(reading.launches) == 1
    assert sorted(path.parent.iterdir()) == before
