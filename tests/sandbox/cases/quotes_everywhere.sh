x='single $x `no`'
y="double \$x \`no\` \"quoted\" $((1+1))"
python3 -m verl.trainer.main_ppo "$x" $y 'a'"b"c\ d $'tab\there' "it's" 'say "hi"' e\'f g="h i"j \
  '{"a": [1, 2]}' "data.files=[\"$x\",'b']" $"locale" '' "" \\ \$HOME "a\b" 'a\b' "multi
line" end
