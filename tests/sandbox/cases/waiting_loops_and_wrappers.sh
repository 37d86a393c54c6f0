# environment: ADDR=node-a
# A server is awaited, a log is copied for ever in the background, and a default holds braces.
copy_for_ever() {
    while true; do
        cp run.log kept.log
        sleep 60
    done
}
copy_for_ever &
COPY=$!

for ((i = 1; i <= 5; i++)); do
    if nc -z $ADDR 6379 >/dev/null 2>&1; then
        break
    fi
    sleep 1
    if [ $i -eq 5 ]; then
        echo "no server"
        exit 1
    fi
done

for i in 1 2 3; do
    curl -s http://localhost:8000/health >/dev/null && break
    sleep 1
    [ $i -lt 3 ] || exit 1
done

prefix=${PREFIX:-'{user}<think>\n'}
is_running() {
    curl -s http://localhost:8000/health >/dev/null
    return $?
}
train() {
    python3 -m verl.trainer.main_ppo data.train_files=a.parquet +prefix="$prefix" "$@"
}
if is_running; then
    train trainer.nnodes=1
else
    echo "the server has ended"
    exit 1
fi

if [ "$(hostname)" == "$ADDR" ]; then
    ray start --head --num-gpus 8
    python3 -m verl.trainer.main_ppo data.train_files=b.parquet
else
    ray start --address "$ADDR:6379" --num-gpus 8
fi

kill $COPY
while ! is_running; do sleep 5; done
wait_for_gpus() {
    while true; do
        if is_running; then
            train trainer.nnodes=2
            break
        fi
        sleep 1
    done
}
wait_for_gpus
