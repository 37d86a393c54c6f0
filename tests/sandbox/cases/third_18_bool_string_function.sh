bool() { if [[ "${1}" =~ ^(1|true|yes)$ ]]; then echo True; else echo False; fi; }
python3 -m verl.trainer.main_ppo a=$(bool 1) b=$(bool no) c=$(bool "yes") d="$(bool '')"
