MODEL_NAME=$1-8B
SHARED=(a.b=1 "here=$HERE")
if [ "$MODEL_NAME" = none ]; then return 1; fi
return 0
SHARED=()
