P=/a/b/c.txt
python3 -m verl.trainer.main_ppo $(basename $P .txt) `dirname $P` $(echo one   two) "$(echo "three   four")" \
  $(printf '%s-%03d' run 7) $(seq -s, 1 4) $(echo Hello | tr 'A-Z' 'a-z') $(echo a:b:c | cut -d: -f2) \
  $(echo path/to/x | sed 's/\//_/g') $(expr 3 + 4) "$(seq 3)" $(echo "x y z" | awk '{print $2}') $(echo abc | cut -c1-2) $(printf "%.2f" 0.5)
