for attempt in 1 2 3; do
  python3 -m verl.trainer.main_ppo trainer.resume_mode=auto attempt=$attempt && break
  echo failed
done
