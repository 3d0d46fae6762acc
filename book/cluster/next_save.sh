#!/bin/bash
# next_save.sh FOLDER SECONDS: wait until book/train.py has saved once more, or until the seconds are over.
newest() { find "$1" -maxdepth 1 -name 'step-*' | sort | tail -n 1; }

last=$(newest "$1")
echo "last save: $last"
for ((second = 0; second < $2; second++)); do
    [ "$(newest "$1")" != "$last" ] && break
    sleep 1
done
echo "saved: $(newest "$1")"
