"""What a reading says beside the words: open parts, refusals, wrappers, environment, files."""

from __future__ import annotations

import pytest

from launcher.scripts.read import read_script
from launcher.scripts.words.state import Wrapper

TRAIN = "python3 -m verl.trainer.main_ppo"


@pytest.fixture
def read(tmp_path):
    def one(text, *arguments, **environment):
        path = tmp_path / "run.sh"
        path.write_text(text)
        return read_script(path, arguments, environment)

    return one


def test_a_command_that_must_run_is_open(read):
    found = read(f"\nNAME=run_$(date +%F)\n{TRAIN} trainer.experiment_name=$NAME \\\n  x=1\n")
    launch = found.launches[0]
    assert launch.words == ("trainer.experiment_name=run_{date +%F}", "x=1")
    assert launch.line.endswith("run.sh:3")
    part = found.open[0]
    assert (part.line.rpartition(":")[2], part.text, part.placeholder) == ("2", "$(date +%F)", "{date +%F}")


@pytest.mark.parametrize(("text", "words"), [
    ("a=$HOME/x", "{HOME}/x"),
    ("a=$(basename $HOME/models/Qwen3-8B)", "Qwen3-8B"),
    ("a=$(dirname $HOME/models/Qwen3-8B)", "{HOME}/models"),
    ("b=$HOME/models/Qwen3-8B; a=${b##*/}", "Qwen3-8B"),
    ("b=$(date +%F).tar.gz; a=${b%.gz}", "{date +%F}.tar"),
    ("b=$(date +%F); a=${b//-/}", "{b//-/}"),
    ("n=$(nproc); a=$((n * 2))", "{n * 2}"),
    ("a=${SLURM_NNODES:-1}", "1"),
    ("a=$SLURM_NNODES", "{SLURM_NNODES}"),
    ("a=$PWD/x", "{PWD}/x"),
    ("cd /work; a=$PWD/x", "/work/x"),
    ("cd sub/../other; a=$(pwd)", "{PWD}/other"),
    ("a=~/x", "{HOME}/x"),
    ("a=$$", "{$$}"),
    ("a=$(python3 -c 'print(1)')", "{python3 -c 'print(1)'}"),
    ("a=$(git rev-parse --short HEAD | head -c 6)", "{git rev-parse --short HEAD | head -c 6}"),
    ("a=$(cat version.txt)", "{cat version.txt}"),
    ("a=$(echo abc | tr '\\q' x)", "{echo abc | tr '\\q' x}"),
    ("echo 3 > version.txt; a=$(cat version.txt)", "3"),
])  # fmt: skip
def test_what_only_running_could_tell_has_a_placeholder(read, text, words):
    assert read(f"{text}\n{TRAIN} x=$a\n").launches[0].words == (f"x={words}",)


@pytest.mark.parametrize(("text", "words"), [
    ("read -r a b <<< $(cat f)", ("{read a}", "{read b}", "")),
    ('read -r a b <<< "x $(cat f)"', ("x", "{cat f}", "")),  # the last variable takes what is left
    ('read -r a b c <<< "x $(cat f) y"', ("x", "{read b}", "{read c}")),
    ("read -r a b <<< $((RANDOM % 9))", ("{RANDOM % 9}", "", "")),  # a number is one word
    ("IFS=: read -r a b <<< $MASTER_ADDR", ("{read a}", "{read b}", "")),
    ('read -ra l <<< "x $(cat f)"; a=${l[0]} b=${l[1]} c=${l[2]}', ("x", "{l[1]}", "{l[2]}")),
    ("o=$(cat f); set -- x $o y; a=$1 b=$3 c=$#", ("x", "{$3}", "{#}")),
    ("set -- x $(cat f) y; shift; a=$1 b=$#; set -- $((RANDOM)) z; c=$2", ("{$1}", "{#}", "z")),
    ("l=(x $(cat f)); a=${#l[@]} b=${l[-1]} c=${l[*]}", ("{#l[@]}", "{l[-1]}", "x {cat f}")),
    ('l=(x $(cat f)); l+=(y); k=("${l[@]:1}"); a=${l[0]} b=${l[2]} c=${k[0]}', ("x", "{l[2]}", "{k[0]}")),
    ('l=("$(cat f)" y); a=${#l[@]} b=${l[1]} c=${l[0]}', ("2", "y", "{cat f}")),  # quoted: one
    ('l=($(cat f)); m="${l[*]}"; k=("$m" y); a=${k[0]} b=${k[1]} c=${#k[@]}', ("{cat f}", "y", "2")),
    ("l=($(cat f)); f() { a=$1 b=$2 c=$#; }; f x \"${l[@]}\"", ("x", "{$2}", "{#}")),
    ("mapfile -t l < <(cat f); a=${#l[@]} b=${l[0]} c=${l[1]}", ("{#l[@]}", "{l[0]}", "{l[1]}")),
    ('mapfile -t l <<< "x\n$(cat f)"; a=${#l[@]} b=${l[0]} c=${l[1]}', ("{#l[@]}", "x", "{l[1]}")),
    ("l=($(cat f)); a=$(printf '%s\\n' \"${l[@]}\" | wc -l)", ("{printf '%s\\n' \"${l[@]}\" | wc -l}", "", "")),
])  # fmt: skip
def test_what_an_open_value_splits_into_is_open(read, text, words):
    assert read(f'{text}\n{TRAIN} "a=$a" "b=$b" "c=$c"\n').launches[0].words == tuple(
        f"{name}={word}" for name, word in zip("abc", words, strict=True)
    )


@pytest.mark.parametrize(("text", "words"), [
    ("f() { a=$# b=$1 c=$2; }; f $(cat f) y", ("{#}", "{$1}", "{$2}")),
    ('f() { a=$# b=$1 c=$2; }; f "$(cat f)" y', ("2", "{cat f}", "y")),
    ("f() { a=$# b=$1 c=$2; }; f $(date +%F) $(nvidia-smi -L | wc -l)", ("2", "{date +%F}", "{nvidia-smi -L | wc -l}")),
    ("a=$(< f) b=$(<f ) c=$( < f | wc -l)", ("{< f}", "{<f}", "0")),
    ("echo 3 > f; a=$(<f)", ("3", "", "")),
    ("IFS= read -r -d '' a < <(printf 'x\\0y')", ("x", "", "")),
])  # fmt: skip
def test_open_words_of_functions_and_files_in_substitutions(read, text, words):
    assert read(f'{text}\n{TRAIN} "a=$a" "b=$b" "c=$c"\n').launches[0].words == tuple(
        f"{name}={word}" for name, word in zip("abc", words, strict=True)
    )


def test_an_open_word_of_a_launch_may_be_several_and_is_named(read):
    found = read(f'{TRAIN} a=1 $(cat more.txt)\nargs=($(cat f)); {TRAIN} "${{args[@]}}" "$(cat g)"\n')
    assert [part.text for part in found.open if "any number of words" in part.note] == ["{cat more.txt}", "{cat f}"]


@pytest.mark.parametrize(("condition", "word", "decided"), [
    ("[[ $n == run_* ]]", "yes", True),
    ("[[ $n == ppo_* ]]", "no", True),
    ("[[ $n == *_x ]]", "yes", True),
    ("[[ $n == *_y ]]", "no", True),
    ("[[ $n != *_y ]]", "yes", True),
    ("[[ $n == run_2* ]]", "no", False),
    ("[[ $n == run_????-* ]]", "no", False),
    ("[[ $n =~ ^run_ ]]", "yes", True),
    ("[[ $n =~ _x ]]", "yes", True),
    ("[[ $n =~ ^x ]]", "no", False),
    ("r='run_'; [[ $n =~ $r ]]", "yes", True),
    ("r='\\run'; [[ $n =~ $r ]]", "no", False),
    ("r='\\x'; [[ $n =~ $r ]]", "no", False),
    ("r='_\\x'; [[ $n =~ $r ]]", "no", False),
])  # fmt: skip
def test_the_known_parts_of_an_open_value_decide_a_pattern(read, condition, word, decided):
    found = read(f"n=run_$(date +%F)_x\nif {condition}; then a=yes; else a=no; fi\n{TRAIN} a=$a\n")
    assert found.launches[0].words == (f"a={word}",)
    assert [part.note for part in found.open if part.note] == [] or not decided


def test_variables_of_an_unknown_file_are_named(read):
    found = read(f"export $(grep -v '^#' other.env | xargs)\n{TRAIN} tp=$TP\n")
    assert found.launches[0].words == ("tp=",) and not found.refused
    assert any("which variables it sets" in part.note for part in found.open)


@pytest.mark.parametrize("loop", [
    "for m in $(cat f)", "l=($(cat f)); for m in \"${l[@]}\"", "mapfile -t l < <(cat f); for m in ${l[@]}",
    "set -- $(cat f); for m", "l=($(cat f)); for m in \"${!l[@]}\"", "l=($(cat f)); for ((m = 0; m < ${#l[@]}; m++))",
])  # fmt: skip
def test_a_loop_over_an_open_number_of_words_is_named(read, loop):
    found = read(f"{loop}; do {TRAIN} x=1; done\n")
    assert len(found.launches) == 1
    assert any("the loop is read once" in part.note for part in found.open)


@pytest.mark.parametrize(("text", "options"), [
    ("a=1 \\nb=2\\n", "-L1"),
    ("a=1\\nb=2\\t\\nc=3\\n", "-L 2"),
    ("a=1\\nb=2\\n", "-d '' -n1"),
    ("a=1\\nb=2\\n", "-d ab"),
])  # fmt: skip
def test_an_unusual_input_of_xargs_is_named(read, text, options):
    found = read(f"printf '{text}' | xargs {options} {TRAIN}\n")
    assert not found.launches
    assert ["the input of xargs" in part.reason for part in found.refused] == [True]


def test_the_environment_given_counts(read):
    found = read(
        f'{TRAIN} home=$HOME n=${{SLURM_NNODES:-1}} d=$PWD "$@"\n', "q=1", HOME="/h", SLURM_NNODES="4", PWD="/w"
    )
    assert found.launches[0].words == ("home=/h", "n=4", "d=/w", "q=1")
    assert not found.open


def test_a_variable_that_is_never_set_is_named(read):
    found = read(f"echo $OTHER\n{TRAIN} x=$NEVER\n")
    assert found.launches[0].words == ("x=",)
    assert [(part.text, part.placeholder) for part in found.open] == [("$NEVER", "")]


@pytest.mark.parametrize(("text", "words"), [
    ("if [ -f /data/x ]; then A=1; else A=2; fi", "2"),
    ("if [ ! -f /data/x ]; then echo missing; exit 1; fi; A=3", "3"),
    ("[ -d /data ] || { echo missing; exit 1; }; A=4", "4"),
    ("if command -v nvidia-smi > /dev/null; then A=5; else A=6; fi", "5"),
    ('if [ "$(hostname)" == head ]; then A=7; else A=8; fi', "8"),
    ("die() { echo $1; exit 1; }\nnvidia-smi || die no; A=9", "9"),
])  # fmt: skip
def test_a_condition_of_the_machine_takes_the_branch_that_goes_on_and_is_named(read, text, words):
    found = read(f"{text}\n{TRAIN} a=$A\n")
    assert found.launches[0].words == (f"a={words}",)
    assert any(part.note for part in found.open)


@pytest.mark.parametrize(("text", "words", "note"), [
    ("case $(hostname) in a) A=1;; *) exit 1;; esac", "1", "the other branches end the script; a) is taken"),
    ("case $(hostname) in a) exit 1;; esac; A=2", "2", "the other branches end the script; no branch is taken"),
    ("case $(hostname) in a|b) A=3;; *) A=4;; esac", "4", "an unknown value; *) is taken"),
    ("case $(hostname) in a) A=5;; b) A=6;; *) exit 1;; esac", "5", "the other branches end the script; a) is taken"),
    ("die() { exit 1; }\ncase $(hostname) in a) A=7; [ $A ] || exit;; *) die;; esac", "7", "; a) is taken"),
    ("while :; do case $(ray status) in *ok*) break;; *) sleep 5;; esac; done; A=8", "8", "*ok*) is taken"),
    ("case x$(hostname) in b) A=9;; *) A=10;; esac", "10", ""),
])  # fmt: skip
def test_a_branch_of_case_that_ends_the_script_is_not_taken(read, text, words, note):
    found = read(f"{text}\n{TRAIN} a=$A\n")
    assert found.launches[0].words == (f"a={words}",)
    notes = [part.note for part in found.open if part.text.startswith("case ")]
    assert len(notes) == bool(note) and all(one.endswith(note) for one in notes)


PROBE = "D=$(python3 -c 'import torch_npu' 2>/dev/null && echo npu || echo gpu)"


@pytest.mark.parametrize(("text", "words"), [
    ("case $D in npu) A=1;; gpu) A=2;; *) exit 1;; esac", "2"),  # what the probe falls back to
    ("case $D in npu) A=1;; *) exit 1;; esac", "1"),
    ("case $D in gpu) exit 1;; esac; if [ $D = npu ]; then A=3; else A=4; fi", "3"),  # and so everywhere
    ("case $D in npu|gpu) A=5;; *) A=6;; esac", "5"),
    ("[[ $D == tpu ]] && A=7; A=${A:-8}", "8"),
    ("if [ $D = gpu ]; then echo unsupported; exit 1; fi; A=9", "9"),
])  # fmt: skip
def test_a_probe_answers_one_of_two_words(read, text, words):
    found = read(f"{PROBE}\n{text}\n{TRAIN} a=$A d=$D\n")
    assert found.launches[0].words == (f"a={words}", f"d={{{PROBE[4:-1]}}}")
    assert found.open[0].text == PROBE[2:]


def test_what_ends_a_script_for_want_of_a_value_is_named(read):
    variable = read(f"set -u\n{TRAIN} x=$A_PATH\n").refused[0]
    assert (variable.unset, variable.reason) == ("A_PATH", "A_PATH is not set, and set -u ends the script there")
    assert read(f"{TRAIN} x=${{A_PATH:?needed}}\n").refused[0].unset == "A_PATH"
    assert read(f"{TRAIN} x=${{2:?needed}}\n", "one").refused[0].unset == "2"
    assert not read(f"set -u; f() {{ {TRAIN} x=$1; }}; f\n").refused[0].unset
    assert not read(f"set -u\n{TRAIN} x=$RANK\n").refused


def test_the_branch_that_launches_is_taken(read):
    found = read(f'if [ "$(hostname)" = head ]; then\n  {TRAIN} a=1\nelse\n  sleep 5\nfi\n')
    assert found.launches[0].words == ("a=1",)
    assert "starts nothing" in found.open[-1].note


@pytest.mark.parametrize(("text", "launches"), [
    ("while true; do\n  if [ $(ray status | grep -c node) -eq 2 ]; then break; fi\n  sleep 5\ndone\nRUN", 1),
    ("while true; do\n  if grep -q done log; then break; fi\n  RUN\n  sleep 5\ndone", 1),
    ("for i in 1 2 3; do\n  if grep -q done $i.log; then break; fi\n  RUN\ndone", 3),
    ("until curl -s http://head:8265; do sleep 5; done\nRUN", 1),
    ("while kill -0 $PID; do sleep 5; done\nRUN", 1),
    ("wait_ready() { while :; do if nc -z head 6379; then return 0; fi; sleep 1; done; }\nwait_ready\nRUN", 1),
])  # fmt: skip
def test_loops_that_wait_are_left_and_loops_that_launch_do_so(read, text, launches):
    found = read(text.replace("RUN", f"{TRAIN} a=1") + "\n")
    assert len(found.launches) == launches
    assert not found.refused


def test_wrappers_with_their_options(read):
    found = read(
        "#!/bin/bash\n#SBATCH --nodes=4 --gpus-per-node=8\n#SBATCH -J name\n"
        "srun -N 4 --ntasks-per-node=1 torchrun --nnodes 4 --nproc_per_node=8 -m verl.trainer.sft_trainer a=1\n"
    )
    assert found.launches[0].program == "verl.trainer.sft_trainer"
    assert found.launches[0].wrappers == (
        Wrapper("sbatch", {"nodes": "4", "gpus-per-node": "8", "J": "name"}),
        Wrapper("srun", {"N": "4", "ntasks-per-node": "1"}),
        Wrapper("torchrun", {"nnodes": "4", "nproc-per-node": "8"}),
    )


def test_ray_job_submit(read):
    found = read(
        "ray job submit --address http://h:8265 --runtime-env-json "
        """'{"working_dir": "/w", "env_vars": {"A": "b"}}' -- """
        f"{TRAIN} a=1\n"
    )
    launch = found.launches[0]
    assert launch.wrappers == (Wrapper("ray job submit", {"address": "http://h:8265", "working-dir": "/w"}),)
    assert launch.environment == {"A": "b"}


def test_the_environment_of_a_launch(read):
    found = read(f"export A=1\nB=2\nC=3 env D=4 {TRAIN} x=1\n")
    assert found.launches[0].environment == {"A": "1", "C": "3", "D": "4"}


def test_other_programs_are_no_launches(read):
    found = read(f"python3 prepare.py --out /data\npython3 -c 'print(1)'\npip install x\n{TRAIN} a=1\n")
    assert [launch.program for launch in found.launches] == ["verl.trainer.main_ppo"]
    assert [launch.program for launch in found.other_programs] == ["prepare.py"]


def test_files_that_are_not_there_are_open(read):
    found = read(f"source /opt/env.sh\nbash other.sh\n./third.sh\n{TRAIN} a=1\n")
    assert [(part.line.rpartition(":")[2], part.text) for part in found.open] == [
        ("1", "source /opt/env.sh"),
        ("2", "bash other.sh"),
        ("3", "./third.sh"),
    ]
    assert len(found.launches) == 1


def test_sourced_files_are_read_from_a_relative_path_too(tmp_path, monkeypatch):
    folder = tmp_path / "examples"
    folder.mkdir()
    (folder / "env.sh").write_text("A=1\n")
    (folder / "run.sh").write_text(f'DIR=$(cd "$(dirname "$0")" && pwd)\n. $DIR/env.sh\n{TRAIN} a=$A d=$DIR\n')
    monkeypatch.chdir(tmp_path)
    found = read_script((folder / "run.sh").relative_to(tmp_path))
    assert found.launches[0].words == ("a=1", "d={PWD}/examples")


def test_files_that_the_script_writes_are_kept(read):
    found = read("cat > conf.yaml <<EOF\na: $(date)\nb: $1\nEOF\nnproc > n.txt\n", "two")
    assert found.written == {"{PWD}/conf.yaml": "a: {date}\nb: two\n", "{PWD}/n.txt": None}


def test_launches_and_refusals_together(read):
    found = read(f"{TRAIN} a=1\n{TRAIN} b=$((1 / 0))\n{TRAIN} c=1\nif true\n")
    assert [launch.words for launch in found.launches] == [("a=1",), ("c=1",)]
    assert [part.line.rpartition(":")[2] for part in found.refused] == ["2", "4"]


@pytest.mark.parametrize("command", [
    "./adapt.sh --nodes 2 RUN", "site_launch --nodes 2 -- RUN", 'site_launch -N 2 bash -c "RUN"', "/opt/bin/start RUN",
])  # fmt: skip
def test_a_program_that_is_not_known_is_taken_to_start_the_command_after_it(read, command):
    found = read(f"{command.replace('RUN', TRAIN + ' a=1')}\n")
    assert [launch.words for launch in found.launches] == [("a=1",)]
    notes = [(part.line.rpartition(":")[2], part.note) for part in found.open]
    assert notes == [("1", "what it does is not known; taken to start the command after it")]


@pytest.mark.parametrize(
    "command", ["pgrep -f python3 -m verl.trainer.main_ppo", "git add python3 train.py", "vi a.sh"]
)
def test_a_program_that_only_tells_starts_nothing(read, command):
    assert not read(f"{command}\n").launches


@pytest.mark.parametrize("text", [
    f"sbatch <<EOF\n#!/bin/bash\n#SBATCH -N 2\nsrun {TRAIN} a=1\nEOF",
    f"sbatch -N 2 --wrap='{TRAIN} a=1'", f'sbatch -N 2 --wrap "{TRAIN} a=1"',
])  # fmt: skip
def test_what_sbatch_is_given_without_a_file(read, text):
    found = read(f"{text}\n{TRAIN} b=1\n")
    assert [launch.words for launch in found.launches] == [("a=1",), ("b=1",)]
    assert found.launches[0].wrappers[0].name == "sbatch"
    assert not found.launches[1].wrappers  # options of Slurm count only before the first command


@pytest.mark.parametrize("loop", [
    'while read -r h; do hosts+=("$h"); n=$((n + 1)); done < <(site_hosts)',
    'for h in $(site_hosts); do hosts+=("$h"); let n+=1; done',
    'while read -r -u 3 h; do hosts+=("$h"); ((n++)); done 3< <(site_hosts)',
])  # fmt: skip
def test_what_a_loop_over_an_open_number_of_lines_counts_is_open(read, loop):
    found = read(f"hosts=(one) n=1 last=\n{loop}\n{TRAIN} n=$n c=${{#hosts[@]}} a=${{hosts[0]}}\n")
    assert found.launches[0].words == ("n={n}", "c={#hosts[@]}", "a=one")
    assert any("the loop is read once" in part.note and part.line.endswith(":2") for part in found.open)


def test_each_answer_of_a_person_is_open(read):
    found = read(f"read -p 'model? ' M\nread -rp 'lr? ' LR\n{TRAIN} m=$M lr=$LR\n")
    assert found.launches[0].words == ("m={read M}", "lr={read LR}")


@pytest.mark.parametrize(("text", "note"), [
    ('eval "$(site_settings)"', "what it sets or starts is known only where the script runs"),
    ("trap 'N=$((N + 1))' DEBUG", "what it runs before each command is not read"),
])  # fmt: skip
def test_what_may_change_any_variable_is_named(read, text, note):
    found = read(f"{text}\n{TRAIN} a=1\n")
    assert [part.note for part in found.open if part.note] == [note]
    assert not [part.note for part in read(f'eval "$(conda shell.bash hook)"\n{TRAIN} a=1\n').open if part.note]


def test_the_commands_that_parallel_makes_are_refused(read):
    found = read(f"parallel -j 2 {TRAIN} data.seed={{}} ::: 1 2 3\n{TRAIN} a=1\n")
    assert [launch.words for launch in found.launches] == [("a=1",)]
    assert [str(part).partition(":1: ")[2] for part in found.refused] == [
        "parallel: the commands that it makes are not read"
    ]


@pytest.mark.parametrize(("text", "words"), [
    ("a=$(printf \"'%s',\" data/*.parquet)", "{printf \"'%s',\" data/*.parquet}"),
    ("a=$(echo data/*.parquet)", "{data/*.parquet}"),
    ("a=$(echo data/part-[0-9] | wc -w)", "{echo data/part-[0-9] | wc -w}"),
    ("printf -v a '%s,' data/*", "{printf -v a}"),
    ("printf '%s\\n' data/* > l; a=$(wc -l < l)", "{wc -l < l}"),
    ("l=\"['/d/a','/d/b']\"; a=$(echo $l | tr -d \\')", "[/d/a,/d/b]"),  # no pattern: brackets around a /
    ("a=$(echo 'data/*')", "data/*"),
])  # fmt: skip
def test_which_files_a_pattern_in_a_command_matches_is_open(read, text, words):
    found = read(f'{text}\n{TRAIN} "a=$a"\n')
    assert found.launches[0].words == (f"a={words}",)
    assert any("which files match" in part.note for part in found.open) == ("{" in words)


@pytest.mark.parametrize("command", [
    "uv pip install deepspeed vllm==0.11 a=b", "poetry add deepspeed wandb", "pdm add torchrun x.py",
    "apt-get -y install python3 -m x=1", "sudo apt-get -y install python3 -m x=1", "site_tool deepspeed a=b c=d",
])  # fmt: skip
def test_names_of_packages_start_nothing(read, command):
    found = read(f"{command}\n{TRAIN} a=1\n")
    assert [launch.words for launch in found.launches] == [("a=1",)] and not found.other_programs


@pytest.mark.parametrize(("body", "words"), [
    ("a=$[a+1]", "{a}"),
    ("declare -i a; a=a+1", "{a}"),
    ("m=$(expr ${a:-0} + 1); a=$m", "{a}"),
    ('a="x;$a"', "{a}"),
    ("a=${a}\\\n,", "{a}"),
    ("a=$b; b=$c; c=1", "{a}"),  # comes only in the third round
    ("[ -n \"$b\" ] && a=more; b=1", "{a}"),
    ("a=same", "same"),
    ("for n in 1 2; do c+=x; done; a=${#c}", "{a}"),
])  # fmt: skip
def test_what_another_round_of_a_loop_changes_is_open(read, body, words):
    for loop in ("for f in d/*; do BODY; done", "while read -r f; do BODY; done < <(site_files)",
                 "n=$(nproc); for ((i = 0; i < n; i++)); do BODY; done"):  # fmt: skip
        found = read(f'f=x\n{loop.replace("BODY", body)}\n{TRAIN} "a=$a"\n')
        assert [launch.words for launch in found.launches] == [(f"a={words}",)], loop


@pytest.mark.parametrize(("text", "words"), [
    ("declare -A m; for f in d/*; do m[$f]=1; done; a=${#m[@]}", "{#m[@]}"),
    ("declare -A m; i=0; for f in d/*; do m[$i]=1; i=$((i+1)); done; a=${#m[@]}", "{#m[@]}"),
    ('for f in d/*; do set -- "$@" --x; done; a=$#', "{#}"),
    ("set -- x y z; for f in d/*; do shift; done; a=$1", "{$1}"),
    ("for f in d/*; do echo x >> list; done; a=$(wc -l < list)", "{wc -l < list}"),
    ("for f in d/*; do echo x > list; done; a=$(cat list)", "x"),
    ("a=$(for f in d/*; do echo x; done | wc -l)", "{for f in d/*; do echo x; done | wc -l}"),
    ("{ for f in d/*; do echo x; done; } > list; a=$(wc -l < list)", "{wc -l < list}"),
    ("for f in d/*; do cd sub; done; a=$PWD", "{PWD after the loop}"),
    ("l=(0 5); for f in d/*; do l[0]=$((l[0]+1)); done; a=${l[0]},${l[1]}", "{l[0]},5"),
])  # fmt: skip
def test_elements_arguments_and_files_that_a_loop_adds_to_are_open(read, text, words):
    found = read(f'{text}\n{TRAIN} "a=$a"\n')
    assert [launch.words for launch in found.launches] == [(f"a={words}",)]


def test_further_rounds_of_a_loop_start_nothing_more(read):
    found = read(f"for f in d/*; do n=$((n+1)); {TRAIN} n=$n; python3 x.py; done\n")
    assert [launch.words for launch in found.launches] == [("n=1",)] and len(found.other_programs) == 1


@pytest.mark.parametrize(("text", "line", "reason"), [
    ("alias t='T a=1'\nf() { t b=1; }\nalias t='T a=2'\nf", 4, "alias t changes after function f"),
    ("alias t='T a=1'\nf() { t b=1; }\nunalias t\nf", 4, "alias t changes after function f"),
    ("f() { t b=1; }\nalias t='T a=1'\nf", 3, "alias t changes after function f"),
    ("alias run='nohup '\nalias t='T a=1'\nrun t", 4, "ends in a blank"),
])  # fmt: skip
def test_an_alias_that_bash_reads_in_another_order_is_refused(read, text, line, reason):
    found = read(f"shopt -s expand_aliases\n{text.replace('T ', TRAIN + ' ')}\n")
    assert not found.launches
    assert [str(part).rpartition("run.sh:")[2].split(":")[0] for part in found.refused] == [str(line)]
    assert reason in found.refused[0].reason
