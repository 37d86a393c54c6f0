ARGS="
 algorithm.adv_estimator=gae
 data.train_batch_size=1024
 critic.optim.lr=1e-5
"
python3 -m verl.trainer.main_ppo ${ARGS} \
 $( [ 1 = 1 ] && echo "trainer.val_before_train=False" ) \
 ${NOTHING} "${NOTHING:-}"
