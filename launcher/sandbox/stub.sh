# What every program but text tools is in the sandbox. Words in @ are filled in. Variables begin with r_, as those of the
# script are in the environment, which goes on to what is started.
case ${RLRUN_NAME:-${0##*/}} in
  python*|torchrun|accelerate|deepspeed|rlrun) '@TOOLS@/env' -0 > "@BOX@/records/environment.$$";;
esac
r_name=${RLRUN_NAME:-${0##*/}}
unset RLRUN_NAME
r_words=("$@")
r_given=()
printf -v r_record 'record.%s.%s' "$EPOCHREALTIME" $$
r_program='^(python[0-9.]*|torchrun|accelerate|deepspeed|rlrun)$'
r_shell='^(bash|sh|zsh|dash)$'
r_text='(^|[[:space:];&/(])(python[0-9.]*|torchrun|accelerate|deepspeed|rlrun|bash|[^[:space:]]*\.sh)([[:space:]]|$)'
r_start='^(python[0-9.]*|torchrun|accelerate|deepspeed|rlrun|bash)[[:space:]]'
r_command="$r_start(.*[[:space:]])?(-m|[^[:space:]]*[.](py|sh))([[:space:]]|$)" # a text that starts a program
r_module='^[A-Za-z_][A-Za-z0-9_]*([.][A-Za-z_][A-Za-z0-9_]*)+$'
r_packages='^(install|add|remove|uninstall|sync|lock|pull|upgrade|download|pip)$' # words after which packages are named

keep() {
  printf '%s\0' "$$" "$r_name" "$PWD" "$RLRUN_PID" "$RLRUN_STEP" "$RLRUN_WITHIN" "${r_words[@]}" \
    > "@BOX@/records/$r_record"
}
answer() {
  if [ -f "@PROGRAMS@/answers/$r_name" ]; then printf '%s\n' "$(<"@PROGRAMS@/answers/$r_name")"; else echo @NUMBER@; fi
  exit 0
}
start() { # a program on another machine, or in a container, has only the environment that it is given
  case $r_name in
    ray|docker|podman|nerdctl|kubectl|ssh|pdsh|clush)
      r_given=(-i PATH="$PATH" HOME="$HOME" USER="$USER" TMPDIR="$TMPDIR" BASH_ENV="$BASH_ENV" RLRUN_PID="$RLRUN_PID" \
        RLRUN_STEP="$RLRUN_STEP" RLRUN_WITHIN="$RLRUN_WITHIN" "${r_given[@]}");;
  esac
  exec '@TOOLS@/env' "${r_given[@]}" "$@"
}
names_a_program() { # whether the words are a command of Python or of a shell, and no packages that are called so
  [[ ${1##*/} =~ $r_shell ]] && [[ $2 =~ ^-[a-z]*c$ || $2 == *.sh || ( $2 == -* && $3 == *.sh ) ]] && return
  [[ ${1##*/} =~ $r_program ]] || return
  for r_word in "${@:2}"; do [[ $r_word == -m || $r_word == --module || $r_word == *.py ]] && return; done
  return 1
}

case $r_name in
  python*|torchrun|accelerate|deepspeed) keep; answer;;
  rlrun) keep; exit 0;;
  sleep|chmod|chown|clear) exit 0;;
  touch) for r_word; do [[ $r_word == -* ]] || : >> "$r_word"; done; exit 0;;
  tail) # -f would wait for ever
    for r_word; do [[ $r_word =~ ^(-[fF]|--follow.*|--retry)$ ]] || r_given+=("$r_word"); done
    exec '@TOOLS@/tail' "${r_given[@]}";;
  which) for r_word; do type -P -- "$r_word" || exit 1; done; exit 0;;
  bash|sh|zsh|dash) # a login shell would read the machine's profile
    case $1 in -l|--login|-i) shift;; -*l*) r_word=${1/l/}; shift; set -- "$r_word" "$@";; esac
    exec '@BASH@' "$@";;
  date)
    keep
    [[ " $* " =~ ' '(-r|--reference|-s|-f) ]] && answer
    r_day=@@NOW@
    while [ $# -gt 0 ]; do
      case $1 in
        -d|--date) r_day=$2; shift;; --date=*) r_day=${1#*=};; -d?*) r_day=${1#-d};; *) r_given+=("$1");;
      esac
      shift
    done
    '@TOOLS@/date' -u -d "$('@TOOLS@/date' -u -d @@NOW@ '+%F %T') $r_day" "${r_given[@]}" 2>/dev/null ||
      '@TOOLS@/date' -u -d "$r_day" "${r_given[@]}"
    exit;;
  mktemp)
    keep
    r_at=1
    while [ -e "$TMPDIR/tmp.rlrun$r_at" ]; do r_at=$((r_at + 1)); done
    r_word=$TMPDIR/tmp.rlrun$r_at # of the same name on every machine, so that what is written there is found
    if [[ " $* " =~ ' '-[a-z]*d ]]; then '@TOOLS@/mkdir' -p "$r_word"; else : > "$r_word"; fi
    printf '%s\n' "$r_word"; exit 0;;
  ray) [ "$1 $2" = "job submit" ] || { keep; answer; };;
  hostname) keep; [[ $1 == -*[iI]* ]] && r_name=ip; answer;;
  parallel) keep; exit 0;;
  tmux|screen) [[ " $* " == *" send-keys "* || " $* " == *new* || " $* " == *-dm* ]] || exit 0;;
  apt*|pip|pip[0-9]*|git|pgrep|pkill|vi|vim|nano|man|kill*|npm|curl|wget) keep; answer;;
esac

keep
export RLRUN_WITHIN="$RLRUN_WITHIN $r_record"
case ' @PASSED@ ' in
  *" $r_name "*) ;;
  *) # nothing is known of it: taken to start the command that its words end with
    for ((r_at = 1; r_at <= $#; r_at++)); do
      [[ ${!r_at} =~ $r_packages ]] && break
      names_a_program "${@:r_at}" && start "${@:r_at}"
      [[ ${!r_at} =~ $r_command ]] && start '@BASH@' -c "${!r_at}"
    done
    answer;;
esac
while [ $# -gt 0 ]; do
  [[ $1 =~ $r_packages ]] && break
  case $1 in
    -e|--env|-x) [[ $r_name != uv && $r_name != srun && $2 == [A-Za-z_]*=* ]] && { r_given+=("$2"); shift; };;
    --env=*=*|-e?*=*) [[ $r_name == s* ]] || { r_word=${1#--env=}; r_given+=("${r_word#-e}"); };;
    --export=*)
      IFS=, read -ra r_words <<< "${1#*=}"
      for r_word in "${r_words[@]}"; do [[ $r_word == *=* ]] && r_given+=("$r_word"); done;;
    -m|--module) [[ $2 =~ $r_module ]] && start python -m "${@:2}";;
    --wrap) start '@BASH@' -c "$2";;
    --wrap=*) start '@BASH@' -c "${1#--wrap=}";;
    *)
      [[ $1 == [A-Za-z_]*=* && $1 != *[\ .]* && $r_name == @(sudo|doas) ]] && r_given+=("$1")
      [[ ${1##*/} =~ $r_program || ${1##*/} =~ $r_shell ]] && start "$@"
      [[ " env nohup timeout nice stdbuf setsid @PASSED@ " == *" ${1##*/} "* ]] && start "$@"
      [[ $1 == *.sh ]] && start '@BASH@' "$@"
      [[ $1 == *.py ]] && start python "$@"
      if [[ $1 =~ [[:space:]] && $1 =~ $r_text ]]; then
        [ "$r_name" = ssh ] && start '@BASH@' -c "$*"
        start '@BASH@' -c "$1"
      fi;;
  esac
  shift
done
case $r_name in ssh|sbatch) start '@BASH@';; esac
answer
