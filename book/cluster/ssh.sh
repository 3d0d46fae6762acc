#!/bin/bash
# book/cluster/ssh.sh --dp 16 --zero 1 --steps 500
# Start it in the project's folder, which lies at the same path on all hosts. Ctrl-C ends all after the next save.
read -ra hosts <<< "${HOSTS:-node-a node-b}"  # change: names that all hosts resolve; ssh must ask for no password
gpus=${GPUS:-8}                               # change: of each host
folder=${FOLDER:-$PWD/checkpoints}            # change: where all hosts write
starts=5                                      # at most; each goes on from the last save

end() {  # without its ssh, an agent gets SIGHUP from the terminal that -tt gave it, and ends its ranks
    kill "${agents[@]}" 2> /dev/null
    wait
}
trap 'bash book/cluster/next_save.sh "$folder" 240; end; exit 130' INT TERM

for ((start = 0; start < starts; start++)); do
    agents=()
    for node in "${!hosts[@]}"; do
        ssh -tt -o BatchMode=yes -o ServerAliveInterval=15 "${hosts[node]}" "cd '$PWD' && PATH='$PATH' \
            PYTHONPATH='$PYTHONPATH' torchrun --nnodes=${#hosts[@]} --node-rank=$node --nproc-per-node=$gpus \
            --master-addr=${hosts[0]} --master-port=29500 book/train.py --folder '$folder' $*" < /dev/null &
        agents+=($!)
    done
    failed=0
    for _ in "${hosts[@]}"; do
        wait -n || { failed=1; break; }
    done
    ((failed)) || exit 0
    end
done
exit 1
