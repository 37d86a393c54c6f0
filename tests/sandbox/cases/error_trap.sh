trap 'echo failed; python3 -m verl.trainer.main_ppo err=$?' ERR
false
if false; then :; fi
false || true
! true
(exit 4)
python3 -m verl.trainer.main_ppo end=1
