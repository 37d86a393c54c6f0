#!/bin/bash
# A descriptor that a group opens is closed after it; exec keeps it open.
printf '3\n4\n' > f
{ read -u 3 x; } 3< f; read -u 3 y || y=none
read_one() { read -u 4 z; }
read_one 4< f; read -u 4 w || w=none
python3 -m verl.trainer.main_ppo x=$x y=$y z=$z w=$w
exec 3< f; read -u 3 x; read -u 3 y
python3 -m verl.trainer.main_ppo x=$x y=$y
