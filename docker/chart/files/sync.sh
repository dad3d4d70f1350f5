# Run ssi sync with the model of the live version, which `ssi promote` and `ssi retrain` change.
set -eu
ssi --config /etc/ssi/ssi.toml versions --quick --json >/tmp/versions.json
model=$(python /etc/ssi/live_model.py /tmp/versions.json /models)
exec ssi "$@" --model "$model"
