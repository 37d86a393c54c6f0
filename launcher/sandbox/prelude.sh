# Bash reads this before each script (BASH_ENV). The prompt of the trace counts commands in the environment, so that what
# a stub records is found with its line. Words in @ are filled in; there are no variables that a script could have, too.
exec {BASH_XTRACEFD}>>'@BOX@/trace'
PS4='+$((RLRUN_PID=BASHPID)) $((RLRUN_STEP+=1)) ${BASH_SOURCE}:${LINENO} '
export RLRUN_PID RLRUN_STEP
echo "#$BASHPID ${RLRUN_PID:-0} ${RLRUN_STEP:-0}" >&"$BASH_XTRACEFD"
RANDOM=@SEED@ HOSTNAME='@HOST@'
command_not_found_handle() {
  case ' @ABSENT@ ' in *" $1 "*) printf '%s: line %s: %s: command not found\n' "$0" "$LINENO" "$1" >&2; return 127;; esac
  RLRUN_NAME=$1 '@PROGRAMS@/bin/.stub' "${@:2}"
}
set -x
