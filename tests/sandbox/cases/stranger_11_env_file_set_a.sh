set -a
cat > my.env <<E
FOO=1
BAR="two words"
E
. ./my.env
set +a
python3 -m verl.trainer.main_ppo foo=$FOO "bar=$BAR"
