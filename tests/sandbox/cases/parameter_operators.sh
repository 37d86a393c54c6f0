M=/models/Qwen/Qwen2.5-7B-Instruct.tar.gz
E=
python3 -m verl.trainer.main_ppo base=${M##*/} dir=${M%/*} stem=${M%%.*} ext=${M#*.} low=${M,,} up=${M^^} first=${M^} \
  sub=${M/Qwen/Llama} all=${M//Qwen/X} cut=${M:8:4} tail=${M: -6} len=${#M} d1=${E:-dflt} d2=${E-unset} d3=${U-unset} \
  alt=${M:+yes} alt2=${E:+no} alt3=${E+set} del=${M//[0-9]/} pre=${M/#\/models/\/m} suf=${M/%.gz/.zip}
