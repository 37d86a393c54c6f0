bash -c 'x=5; python3 -m verl.trainer.main_ppo a=$x b="$0" c=$1 "d=$#"' name first second
