python3 -m verl.trainer.main_ppo data.train_batch_size=\
32 'data.prompt=a \
b' "data.suffix=c \
d" trainer.name=x\
y   \
     last=1
