# bash completion of timer_server and timer_client, installed under both names. Options, their
# values and the subcommands come from --help, so that none is missing. Names of scopes and ids of
# expiries come from the server's files, for a second at most.
# SPDX-License-Identifier: MIT

# Sets words to the line up to the cursor, with `--option=value` as two words (bash has split it
# into three) and `a:b` as one, and cur and prev to the last two of them.
_filetimer_words() {
  local i
  words=()
  for ((i = 0; i <= COMP_CWORD; ++i)); do
    if ((i > 0)) && [[ ${COMP_WORDS[i]} == '=' && ${COMP_WORDS[i - 1]} == --* ]]; then
      ((i < COMP_CWORD)) || words+=('')
    elif ((i > 0)) && [[ -n ${COMP_WORDS[i]} && ${COMP_WORDS[i - 1]}${COMP_WORDS[i]} == *:* &&
      $COMP_LINE == *"${words[-1]}${COMP_WORDS[i]}"* ]]; then
      words[-1]+=${COMP_WORDS[i]}
    else
      words+=("${COMP_WORDS[i]}")
    fi
  done
  words[0]=${words[0]/#\~/$HOME}
  cur=${words[-1]} prev=${words[-2]}
}

# Sets takes[--option] to the name of its value in --help, or to an empty text, and long[-o,] to
# --option.
_filetimer_options() {
  local letter option value
  while read -r letter option value; do
    takes[$option]=$value
    [[ $letter == , ]] || long[$letter]=$option
  done < <("$@" --help 2>/dev/null |
    sed -nE 's/^ +(-[a-z])?,?(--[a-z][a-z-]*)( ([^ ]+))?.*/\1, \2 \4/p')
}

_filetimer_subcommands() {
  "$1" --help 2>/dev/null | sed -nE '1,/^Watch:/d; /^Examples:/q; s/^  ([a-z]+) .*/\1/p'
}

_filetimer_among() {  # WORDS
  mapfile -t COMPREPLY < <(compgen -W "$1" -- "$cur")
}

# Bash replaces only what follows the last `:`, because it has split the word there.
_filetimer_after_colon() {
  [[ $COMP_WORDBREAKS != *:* ]] || COMPREPLY=("${COMPREPLY[@]#"${cur%"${cur##*:}"}"}")
}

_filetimer_files() {  # -d or -f
  compopt -o filenames 2>/dev/null
  mapfile -t COMPREPLY < <(compgen "$1" -- "$cur")
  _filetimer_after_colon
}

# Adds the first value of a key in each of the JSON lines that the client prints for the --dir of
# the command line.
_filetimer_values() {  # KEY SUBCOMMAND [OPTION...]
  local key=$1 i value
  local -a place=()
  shift
  for ((i = 1; i + 1 < ${#words[@]}; ++i)); do
    [[ ${words[i]} != --dir ]] || place=(--dir "${words[i + 1]/#\~/$HOME}")
  done
  while IFS= read -r value; do
    [[ $value != "$cur"* ]] || COMPREPLY+=("$(printf '%q' "$value")")
  done < <(timeout 1 "${words[0]}" "$@" "${place[@]}" --json 2>/dev/null |
    sed -nE "s/\"$key\":\"([^\"\\\\]+)\".*/\n\1/; s/.*\n//p" | sort -u)
  _filetimer_after_colon
}

_filetimer_value() {  # SUBCOMMAND OPTION
  case ${takes[$2]} in
    DIR) _filetimer_files -d ;;
    FILE | PATH) _filetimer_files -f ;;
    CMD) mapfile -t COMPREPLY < <(compgen -c -- "$cur") ;;
    MODE) _filetimer_among 'graceful graceful_or_now workers workers_or_now if_idle now' ;;
    FORMAT) _filetimer_among 'table json toml' ;;
    LEVEL) _filetimer_among 'error warning info debug' ;;
    SIG) _filetimer_among "$(compgen -A signal SIG | sed -E '/^SIG(IO|JUNK|RT)/d; s/^SIG//')" ;;
    PID) _filetimer_among "$(cd /proc && printf '%s ' [0-9]*)" ;;
    EVENT)  # the error about an unknown event lists all events
      _filetimer_among "$("${words[0]}" log --event '?' 2>&1 |
        sed -n 's/.*expected one of //p' | tr -d ,)"
      ;;
    *'|'*)  # DUR|off
      local choices=${takes[$2]#DUR}
      _filetimer_among "${choices//|/ }"
      ;;
    NAME)
      case $1$2 in
        release--scope) _filetimer_values scope list ;;
        log--scope) _filetimer_values scope log --event expired,warned,left_open ;;
      esac
      ;;
  esac
}

# After `--` comes a command with its own arguments.
_filetimer_command() {
  local i
  for ((i = 1; i < COMP_CWORD; ++i)); do
    if [[ ${COMP_WORDS[i]} == -- ]]; then
      if declare -F _command_offset >/dev/null; then
        _command_offset $((i + 1))
      elif ((i + 1 == COMP_CWORD)); then
        mapfile -t COMPREPLY < <(compgen -c -- "${COMP_WORDS[COMP_CWORD]}")
      else
        cur=${COMP_WORDS[COMP_CWORD]}
        _filetimer_files -f
      fi
      return 0
    fi
  done
  return 1
}

# Prints the number of words of a subcommand that are neither options nor their values, without the
# last.
_filetimer_positionals() {  # FIRST
  local i count=0
  for ((i = $1; i < ${#words[@]} - 1; ++i)); do
    if [[ ${words[i]} != -* ]]; then
      ((++count))
    elif [[ -n ${takes[${long[${words[i]},]-${words[i]}}]-} ]]; then
      ((++i))
    fi
  done
  printf '%s' "$count"
}

# Completes options and their values. Returns false if the word is neither.
_filetimer_options_and_values() {  # SUBCOMMAND
  local option=${long[$prev,]-$prev}
  if [[ $option == --* && -n ${takes[$option]-} ]]; then
    _filetimer_value "$1" "$option"
  elif [[ $cur == -* ]]; then
    _filetimer_among "${!takes[*]}"
  else
    return 1
  fi
}

_timer_server() {
  local cur prev
  local -a words
  local -A takes=() long=()
  COMPREPLY=()
  _filetimer_command && return
  _filetimer_words
  _filetimer_options "${words[0]}"
  _filetimer_options_and_values '' || _filetimer_among "${!takes[*]} --"
}

_timer_client() {
  local cur prev
  local -a words
  local -A takes=() long=()
  COMPREPLY=()
  _filetimer_words
  if ((${#words[@]} == 2)); then
    _filetimer_options "${words[0]}"
    [[ $cur == -* ]] || takes=()
    _filetimer_among "${!takes[*]} $(_filetimer_subcommands "${words[0]}")"
    return
  fi
  local subcommand=${words[1]}
  [[ $subcommand != run ]] || { _filetimer_command && return; }
  _filetimer_options "${words[0]}" "$subcommand"
  _filetimer_options_and_values "$subcommand" && return
  case $subcommand-$(_filetimer_positionals 2) in
    show-0 | report-0)
      _filetimer_among last
      _filetimer_values id log --event expired
      ;;
    show-* | report-* | log-* | suggest-*) _filetimer_files -f ;;
    *) _filetimer_among "${!takes[*]}" ;;
  esac
}

complete -F _timer_server timer_server
complete -F _timer_client timer_client
