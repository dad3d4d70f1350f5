# Run ssi and turn the exit statuses of the first argument into 0: sh accept.sh "7 8" retrain ...
accepted=$1
shift
status=0
ssi "$@" || status=$?
case " $accepted " in
*" $status "*)
    echo "ssi ended with status $status, which counts as a success" >&2
    exit 0
    ;;
esac
exit "$status"
