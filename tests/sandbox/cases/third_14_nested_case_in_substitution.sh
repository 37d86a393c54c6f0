M=32b
TP=$(case $M in 7b) echo 1;; 32b|72b) echo 4;; esac)
X=$(if [ $TP = 4 ]; then echo big; else echo small; fi)
Y=$(for i in 1 2 3; do printf '%s' $i; done)
Z=$(f() { echo in; }; f; echo out)
python3 -m verl.trainer.main_ppo tp=$TP x=$X y=$Y "z=$Z" w=$(( $(echo 3) + `echo 4` ))
