cd /nonexistent_dir_xyz 2>/dev/null || cd .
true && A=1 || A=2
false && B=1 || B=2
! false && C=3
[ 1 -eq 1 ] && [ "a" != "b" ] && D=4
{ false || true; } && E=5
if ! { [ -z "" ] && false; }; then F=6; fi
python3 -m verl.trainer.main_ppo a=$A b=$B c=$C d=$D e=$E f=$F
