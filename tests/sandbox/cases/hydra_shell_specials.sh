python3 -m verl.trainer.main_ppo +a.b={x:1,y:2} 'c={x:1,y:2}' d=[1,2,3] e=\[a,b\] "f='x=y'" g=null h=\"quoted\" \
 'i=${oc.env:HOME}' "j=\${k}" l=a,b m='a#b' n=x#y o=$'p\'q' ++r=1 ~s 't=[{"u":1}]' --config-dir /etc/cfg -cn name hydra.run.dir=. 'v=(1)'
