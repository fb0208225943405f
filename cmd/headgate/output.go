package main

import (
	"encoding/json"
	"fmt"
	"io"

	"github.com/spf13/cobra"
)

// output is the value of -o.
type output string

const (
	textOutput output = "text"
	jsonOutput output = "json"
	// jsonLine is JSON on one line, for what is printed again and again. No flag takes it.
	jsonLine output = "json, a line each"
)

// String implements pflag.Value.
func (o *output) String() string { return string(*o) }

// Type implements pflag.Value.
func (*output) Type() string { return "text|json" }

// Set implements pflag.Value.
func (o *output) Set(text string) error {
	switch output(text) {
	case textOutput, jsonOutput:
		*o = output(text)
		return nil
	case jsonLine: // for commands alone
	}
	return fmt.Errorf("write text or json")
}

func outputFlag(cmd *cobra.Command, o *output) {
	cmd.Flags().VarP(o, "output", "o", "`format` of the output: text or json")
}

// printAs prints what a command found: for people by text, for programs what as JSON. An error has an exit code.
func printAs(w io.Writer, as output, what any, text func(io.Writer) error) error {
	var err error
	if as == textOutput {
		err = text(w)
	} else {
		encoder := json.NewEncoder(w)
		encoder.SetEscapeHTML(false) // it goes to a terminal or a program, into no page
		if as == jsonOutput {
			encoder.SetIndent("", "  ")
		}
		err = encoder.Encode(what)
	}
	if err != nil {
		return &exitError{exitFailed, fmt.Errorf("print: %w", err)}
	}
	return nil
}

// sentence is a text of one line for printAs.
func sentence(format string, args ...any) func(io.Writer) error {
	return func(w io.Writer) error {
		_, err := fmt.Fprintf(w, format+"\n", args...)
		return err
	}
}
