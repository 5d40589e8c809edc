package main

import (
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/alecthomas/kong"

	"github.com/inboxd/inboxd/client"
	"github.com/inboxd/inboxd/inbox"
)

// completionCommand prints what makes a shell complete inboxd's command line. The script asks inboxd itself for the
// words, so it needs no renewal with a new version.
type completionCommand struct {
	Shell string `arg:"" enum:"bash,zsh,fish" help:"bash, zsh or fish."`
}

func (cmd *completionCommand) Run(c *console) error {
	_, err := fmt.Fprint(c.out, completionScripts[cmd.Shell])
	return err
}

// completionScripts call "inboxd complete -- WORD…" with the words up to the cursor, the last of which may be empty, and get
// lines of a word, a tab and its help. Where there are none, files are completed.
var completionScripts = map[string]string{
	"bash": `# To have it now: source <(inboxd completion bash). To keep it: write it to ~/.local/share/bash-completion/completions/inboxd
_inboxd() {
    local line
    COMPREPLY=()
    while IFS= read -r line; do
        COMPREPLY+=("${line%%$'\t'*}")
    done < <("${COMP_WORDS[0]}" complete -- "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null)
}
complete -o default -F _inboxd inboxd
`,
	"zsh": `#compdef inboxd
# To have it now: source <(inboxd completion zsh). To keep it: write it to _inboxd in a directory of $fpath.
_inboxd() {
    local -a found
    local line
    while IFS= read -r line; do
        found+=("${${line%%$'\t'*}//:/\\:}:${line#*$'\t'}")
    done < <("${words[1]}" complete -- "${(@)words[2,CURRENT]}" 2>/dev/null)
    if (( ${#found} )); then
        _describe inboxd found
    else
        _files
    fi
}
if [[ $funcstack[1] == _inboxd ]]; then
    _inboxd "$@"
else
    compdef _inboxd inboxd
fi
`,
	"fish": `# To have it now: inboxd completion fish | source. To keep it: write it to ~/.config/fish/completions/inboxd.fish
function __inboxd_complete
    set -l words (commandline -opc)
    set -l found ($words[1] complete -- $words[2..-1] (commandline -ct) 2>/dev/null)
    if test (count $found) -gt 0
        printf '%s\n' $found
    else
        __fish_complete_path (commandline -ct)
    end
end
complete -c inboxd -f -a '(__inboxd_complete)'
`,
}

type completeCommand struct {
	Words []string `arg:"" optional:""`
}

func (cmd *completeCommand) Run(k *kong.Kong, c *console) error {
	for _, word := range complete(k.Model.Node, cmd.Words) {
		if _, err := fmt.Fprintf(c.out, "%s\t%s\n", word.text, word.help); err != nil {
			return err
		}
	}
	return nil
}

type completion struct{ text, help string }

// complete returns what the last of the words can be.
func complete(node *kong.Node, words []string) []completion {
	if len(words) == 0 {
		words = []string{""}
	}
	last := words[len(words)-1]
	var of *kong.Flag // whose value comes next
	arguments, flags := 0, true
	for _, word := range words[:len(words)-1] {
		switch {
		case of != nil && word == "=": // bash makes it a word of its own
		case of != nil:
			of = nil
		case flags && word == "--":
			flags = false
		case flags && strings.HasPrefix(word, "-"):
			name, _, valued := strings.Cut(word, "=")
			if of = findFlag(node, name); of != nil && (valued || of.IsBool()) {
				of = nil
			}
		default:
			if child := findChild(node, word); child != nil {
				node = child
			} else {
				arguments++
			}
		}
	}
	if of != nil {
		return startingWith(strings.TrimPrefix(last, "="), "", choices(of.Value))
	}
	if name, _, valued := strings.Cut(last, "="); valued && flags {
		if of = findFlag(node, name); of != nil {
			return startingWith(last, name+"=", choices(of.Value))
		}
	}
	var found []completion
	switch {
	case flags && strings.HasPrefix(last, "-"):
		for _, flag := range node.AllFlags(true) {
			for _, flag := range flag {
				found = append(found, completion{"--" + flag.Name, flag.Help})
			}
		}
	case len(node.Children) > 0:
		for _, child := range node.Children {
			if !child.Hidden {
				found = append(found, completion{child.Name, child.Help})
			}
		}
	case arguments < len(node.Positional):
		found = choices(node.Positional[arguments])
	}
	return startingWith(last, "", found)
}

func startingWith(prefix, before string, words []completion) (found []completion) {
	for _, word := range words {
		if word.text = before + word.text; strings.HasPrefix(word.text, prefix) {
			found = append(found, word)
		}
	}
	return found
}

func findFlag(node *kong.Node, name string) *kong.Flag {
	for _, group := range node.AllFlags(false) {
		for _, flag := range group {
			if name == "--"+flag.Name || flag.Short != 0 && name == "-"+string(flag.Short) {
				return flag
			}
		}
	}
	return nil
}

func findChild(node *kong.Node, name string) *kong.Node {
	i := slices.IndexFunc(node.Children, func(child *kong.Node) bool { return child.Name == name || slices.Contains(child.Aliases, name) })
	if i < 0 {
		return nil
	}
	return node.Children[i]
}

// choices returns the values that a flag or argument can have, if they are few.
func choices(v *kong.Value) (found []completion) {
	values := v.EnumSlice()
	if v.Enum == "" {
		t := v.Target.Type()
		if t.Kind() == reflect.Pointer {
			t = t.Elem()
		}
		values = choicesOf[t]
	}
	for _, value := range values {
		found = append(found, completion{text: value})
	}
	return found
}

// choicesOf are the values of types of the API.
var choicesOf = map[reflect.Type][]string{
	reflect.TypeFor[client.Status]():          texts(inbox.Statuses()),
	reflect.TypeFor[client.DeliveryStatus]():  texts(slices.DeleteFunc(inbox.Statuses(), func(s inbox.Status) bool { return s == inbox.Duplicate || s == inbox.Unrouted })),
	reflect.TypeFor[client.JobFilterStatus](): {"DONE", "DISCARDED", "UNROUTED", "DUPLICATE"}, // of a replay
	reflect.TypeFor[client.JobStatus]():       {"running", "done", "cancelled", "failed"},
	reflect.TypeFor[client.ListDeliveriesParamsErrorClass](): texts([]inbox.Class{
		inbox.ClassStatus, inbox.ClassTimeout, inbox.ClassConnection, inbox.ClassTLS, inbox.ClassRefused, inbox.ClassRedirect,
		inbox.ClassRequest, inbox.ClassToken, inbox.ClassLeaseExpired,
	}),
}

func texts[T ~string](values []T) []string {
	list := make([]string, len(values))
	for i, value := range values {
		list[i] = string(value)
	}
	return list
}
