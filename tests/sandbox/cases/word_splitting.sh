ARGS="a=1  b=2
c=3"
IFS=,
LIST="x,y,,z"
python3 -m verl.trainer.main_ppo $LIST "$ARGS"
unset IFS
python3 -m verl.trainer.main_ppo $ARGS q$ARGS
set -- $ARGS
python3 -m verl.trainer.main_ppo $# "$3" "$*"
