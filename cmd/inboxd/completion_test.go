package main

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
)

// completed returns the words that inboxd offers for the last of the words.
func completed(t *testing.T, words ...string) (offered []string) {
	t.Helper()
	var out bytes.Buffer
	if status := run(t.Context(), append([]string{"complete", "--"}, words...), &out, &out); status != 0 {
		t.Fatalf("complete %q ended with %d: %s", words, status, out.String())
	}
	for line := range strings.Lines(out.String()) {
		word, _, _ := strings.Cut(line, "\t")
		offered = append(offered, word)
	}
	return offered
}

func TestComplete(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		words string // the last one is what follows the last space
		want  string
	}{
		{"messag", "messages"},
		{"handlers p", "pause ping"},
		{"handlers pause --re", "--reason"},
		{"handlers update --ti", "--timeout"},
		{"messages list --status P", "PROCESSING PENDING"},
		{"messages list --status=DI", "--status=DISCARDED"},
		{"messages list --status = DI", "DISCARDED"},
		{"deliveries list --status U", ""},
		{"deliveries list --error-class t", "timeout tls token"},
		{"messages list --source --status", ""},
		{"messages list --source shop --sta", "--status"},
		{"messages list --json --sta", "--status"},
		{"replay --status D", "DONE DISCARDED DUPLICATE"},
		{"jobs list --status ", "running done cancelled failed"},
		{"completion ", "bash zsh fish"},
		{"completion bash ", ""},
		{"messages get 12 ", ""},
		{"messages get -- --js", ""},
		{"tail --status=MAN", "--status=MANUAL_REQUIRED"},
		{"--hel", "--help"},
		{"nonsense ", strings.Join(completed(t, ""), " ")},
		{"compl", "completion"}, // what only shells call is left out
	} {
		if got := strings.Join(completed(t, strings.Split(test.words, " ")...), " "); got != test.want {
			t.Errorf("inboxd %s⇥ offers %q, want %q", test.words, got, test.want)
		}
	}
	// What is offered for a type is what the API knows.
	for kind, values := range choicesOf {
		for _, value := range values {
			v := reflect.New(kind).Elem()
			v.SetString(value)
			if valid, ok := reflect.TypeAssert[interface{ Valid() bool }](v); !ok || !valid.Valid() {
				t.Errorf("%q is offered for a %s", value, kind)
			}
		}
	}
}

// TestCompletionScripts has each shell that this machine has complete a line.
func TestCompletionScripts(t *testing.T) {
	t.Parallel()
	for shell, driver := range map[string]string{
		"bash": `source "$1"
COMP_WORDS=(inboxd messages list --status = P) COMP_CWORD=5; _inboxd; printf '%s\n' "${COMPREPLY[@]}"
COMP_WORDS=(inboxd handlers p) COMP_CWORD=2; _inboxd; printf '%s\n' "${COMPREPLY[@]}"
COMP_WORDS=(inboxd "sp ace" '') COMP_CWORD=2; _inboxd; printf '%s\n' "${#COMPREPLY[@]}"
complete -p inboxd`,
		"zsh": `compdef() { echo "compdef $*" }
_describe() { print -l ${(P)2} }
_files() { echo files }
source "$1"
words=(inboxd handlers p) CURRENT=3; _inboxd
words=(inboxd messages get 1 "") CURRENT=5; _inboxd`,
		"fish": `source $argv[1]
complete -C 'inboxd handlers p'
complete -C 'inboxd messages list --status=PE'
cd /; complete -C 'inboxd sources create x --secret-file et'`,
	} {
		t.Run(shell, func(t *testing.T) {
			t.Parallel()
			program, err := exec.LookPath(shell)
			if errors.Is(err, exec.ErrNotFound) {
				t.Skip("there is no " + shell)
			}
			// The test's binary under the name that the shells call.
			dir := t.TempDir()
			wrapper := "#!/bin/sh\n" + asInboxd + "=1 exec '" + os.Args[0] + "' \"$@\"\n"
			script := filepath.Join(dir, "script")
			var out bytes.Buffer
			if status := run(t.Context(), []string{"completion", shell}, &out, &out); status != 0 {
				t.Fatalf("completion %s ended with %d: %s", shell, status, out.String())
			}
			if err := errors.Join(os.WriteFile(filepath.Join(dir, "inboxd"), []byte(wrapper), 0o700), os.WriteFile(script, out.Bytes(), 0o600)); err != nil {
				t.Fatal(err)
			}
			args := []string{"-c", driver, shell, script}
			if shell == "fish" {
				args = []string{"-c", driver, script}
			}
			cmd := exec.CommandContext(t.Context(), program, args...)
			cmd.Env = append(os.Environ(), "PATH="+dir+":"+os.Getenv("PATH"), "HOME="+dir)
			text, err := cmd.CombinedOutput()
			if err != nil {
				t.Fatalf("%s: %v\n%s", shell, err, text)
			}
			want := map[string][]string{
				"bash": {"PROCESSING", "PENDING", "pause", "ping", "complete -o default -F _inboxd inboxd"},
				"zsh":  {"compdef _inboxd inboxd", "pause:Deliver nothing more to a handler; its messages wait.", "files"},
				"fish": {"pause\tDeliver nothing more to a handler; its messages wait.", "--status=PENDING", "etc/"},
			}[shell]
			lines := strings.Split(string(text), "\n")
			for _, line := range want {
				if !slices.Contains(lines, line) {
					t.Errorf("%s doesn't offer %q but\n%s", shell, line, text)
				}
			}
		})
	}
	var out bytes.Buffer
	if status := run(t.Context(), []string{"completion", "csh"}, &out, &out); status != 2 {
		t.Errorf("completion csh ended with %d", status)
	}
}
