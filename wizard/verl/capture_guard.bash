# Read by every bash of a captured script through BASH_ENV. Two things a script does would pass the stand-ins by:
# putting another folder before them on PATH (an activated environment), and calling a program by its path.
# The script's own arguments follow the command's text, so that "$@" in it means what it meant there; names are
# long because the text is evaluated among them.
# Returns 0 when the command was recorded and must not run. Negated in the trap, so that `set -e` does not end the
# script over it.
__vw_caught() {
  local __vw_text=$1 __vw_before='' __vw_word __vw_value __vw_leaves=
  shift
  case $PATH in
    "$VERL_WIZARD_CAPTURE_BIN":*) ;;
    *) PATH=$VERL_WIZARD_CAPTURE_BIN:$PATH; hash -r ;;
  esac
  # Assignments before the command.
  while [[ $__vw_text =~ $__vw_assignment ]]; do
    __vw_before+=${BASH_REMATCH[1]}
    __vw_text=${BASH_REMATCH[4]}
  done
  [[ $__vw_text =~ ^[A-Za-z_][A-Za-z0-9_]*(\[[^]]*\])?\+?= ]] && return 1
  while [[ $__vw_text =~ ^(exec|command)[[:space:]]+([^-].*)$ ]]; do
    [[ ${BASH_REMATCH[1]} == exec ]] && __vw_leaves=1
    __vw_text=${BASH_REMATCH[2]}
  done
  case $__vw_text in
    \"*) __vw_word=${__vw_text#\"}; __vw_word="\"${__vw_word%%\"*}\"" ;;
    \'*) __vw_word=${__vw_text#\'}; __vw_word="'${__vw_word%%\'*}'" ;;
    *) __vw_word=${__vw_text%%[[:space:]]*} ;;
  esac
  # A command substitution would run twice if it were expanded here as well.
  # shellcheck disable=SC2016
  case $__vw_word in *'$('* | *'`'* | *'<('*) return 1 ;; esac
  eval "__vw_value=$__vw_word" 2> /dev/null || return 1
  [[ $__vw_value == */* && $__vw_value != "$VERL_WIZARD_CAPTURE_BIN"/* ]] || return 1
  [[ -x $VERL_WIZARD_CAPTURE_BIN/${__vw_value##*/} ]] || return 1
  eval "$__vw_before \"\$VERL_WIZARD_CAPTURE_BIN/\${__vw_value##*/}\" ${__vw_text#"$__vw_word"}"
  [[ -n $__vw_leaves ]] && exit 0
  return 0
}
__vw_assignment='^([A-Za-z_][A-Za-z0-9_]*=("[^"]*"|'"'[^']*'"'|([^[:space:]"'"'"'])*)[[:space:]]+)(.*)$'
# Within the trap: while it reads this file, bash would look for a debugger and switch both off again.
trap 'shopt -s extdebug; set -o functrace; ! __vw_caught "$BASH_COMMAND" "$@"' DEBUG
