"""The scripts with which bash, zsh and fish ask for completions.

No shell evaluates a word of the answer: each line becomes an element of an array. zsh and fish quote what they insert.
"""

from __future__ import annotations

BASH = r"""
_clusterctl() {
    local program=$1 files line
    type -P -- "$program" >/dev/null || program=clusterctl  # an alias
    COMPREPLY=()
    {
        IFS= read -r files || files=files
        while IFS= read -r line; do COMPREPLY+=("$line"); done
    } < <(_CLUSTERCTL_COMPLETE=bash _CLUSTERCTL_LINE="${COMP_LINE:0:COMP_POINT}" _CLUSTERCTL_WORD="$2" \
        command "$program" 2>/dev/null)
    if [[ $files == dirs ]]; then compopt -o plusdirs +o default 2>/dev/null; fi
    if [[ $files == none ]]; then compopt +o default 2>/dev/null; fi
    if [[ ${#COMPREPLY[@]} == 1 && ${COMPREPLY[0]} == *= ]]; then compopt -o nospace 2>/dev/null; fi
}
complete -o default -o nosort -F _clusterctl clusterctl 2>/dev/null || complete -o default -F _clusterctl clusterctl
"""

ZSH = r"""
#compdef clusterctl
_clusterctl() {
    local program=${(Q)words[1]} files line value
    local -a asked lines plain assigned shown_plain shown_assigned
    (( $+commands[$program] )) || [[ -x $program && ! -d $program ]] || program=clusterctl
    asked=("${(@Q)words[1,CURRENT-1]}" "${(Q)PREFIX}")
    lines=("${(@f)$(_CLUSTERCTL_COMPLETE=zsh _CLUSTERCTL_WORDS=${(pj:\x1f:)asked} command $program 2>/dev/null)}")
    files=${lines[1]:-files}
    for line in "${(@)lines[2,-1]}"; do
        [[ -n $line ]] || continue
        value=${line%%$'\t'*} line=${line#*$'\t'}
        if [[ $value == *= ]]; then
            assigned+=("$value") shown_assigned+=("$value${line:+  -- $line}")
        else
            plain+=("$value") shown_plain+=("$value${line:+  -- $line}")
        fi
    done
    (( $#plain )) && compadd -V clusterctl -l -d shown_plain -a -- plain
    (( $#assigned )) && compadd -V clusterctl -S '' -l -d shown_assigned -a -- assigned
    [[ $files == none ]] && return
    [[ $PREFIX == --*=* ]] && compset -P '*='
    if [[ $files == dirs ]]; then _files -/; else _files; fi
}
if [[ $funcstack[1] == _clusterctl ]]; then _clusterctl "$@"; else compdef _clusterctl clusterctl; fi
"""

FISH = r"""
function __clusterctl_complete
    set -l words (commandline -opc)
    set -l current (commandline -ct)
    set -l program $words[1]
    command -q -- $program; or set program clusterctl
    set -l asked (string join \x1f -- $words "$current")
    set -l lines (_CLUSTERCTL_COMPLETE=fish _CLUSTERCTL_WORDS="$asked" command $program 2>/dev/null)
    set -l files $lines[1]
    test -n "$files"; or set files files
    set -e lines[1]
    set -l option (string match -r -- '^--[^=]*=' "$current")
    set -l typed (string replace -r -- '^--[^=]*=' '' "$current")
    set -l paths
    if test $files = dirs
        set paths (__fish_complete_directories "$typed" '')
    else if test $files = files
        set paths (__fish_complete_path "$typed")
    end
    for path in $paths
        set -a lines "$option$path"
    end
    for line in $lines
        printf '%s\n' "$line"
    end
end
complete -c clusterctl -f -k -a '(__clusterctl_complete)'
"""

SCRIPTS = {"bash": BASH.strip(), "zsh": ZSH.strip(), "fish": FISH.strip()}
