python3 -m verl.trainer.main_ppo s="$(printf '%s\n' c a b | sort | tr '\n' ' ')" u=$(printf '3\n1\n3\n' | sort -u | tr '\n' ',') n=$(printf '10\n9\n2\n' | sort -n | paste -sd, -) \
 r=$(echo abc | rev) l=$(printf 'x\ny\n' | tac | head -1) q=$(printf 'a\na\nb\n' | uniq | paste -s -d ' ' -) nr=$(seq 3 | sort -nr | paste -sd:) \
 x="$(printf '  a  b\n"c d"  e\n' | xargs)" d="$(printf 'a  b\nc\n' | xargs -d '\n')" e="$(echo '  trim me ' | xargs)" p=$(seq 3 | paste -sd+ | xargs) z="$(printf '' | xargs)" \
 o="$(printf 'b_x\nB-a\na.c\n' | sort | head -1)" uu="$(printf 'lr=1\nn=2\n' | sort -r | xargs)"
cat > my.env <<'EOF'
# settings
TP=4
MODEL=Qwen/Qwen3-8B
EOF
export $(grep -v '^#' my.env | xargs)
declare $(cat my.env | grep -v '#' | xargs)
python3 -m verl.trainer.main_ppo tp=$TP m=$MODEL
