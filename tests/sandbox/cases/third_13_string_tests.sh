A=Qwen3-8B
[[ $A = Qwen* ]] && F=qwen
[[ ${A,,} =~ llama ]] || G=notllama
[ "${A#*-}" != "$A" ] && S=${A#*-}
[[ -z "${B-}" && -n $A ]] && T=1
if [[ "$A" < "Z" ]]; then L=less; fi
[ "$A" ] && [ ! "$B" ] && U=yes
python3 -m verl.trainer.main_ppo f=$F g=$G s=$S t=$T l=$L u=$U
