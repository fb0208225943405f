package annotations

import (
	"errors"
	"fmt"
	"strings"

	"headgate/gateway/model"
)

// The limits of rewrite-target. Nobody writes so much by hand; they bound what a request can cost.
const (
	maxRewriteBytes = 2048
	maxRewriteParts = 32
)

// RewriteTarget is the parsed rewrite-target. The zero value means that it is not set.
type RewriteTarget struct {
	Text  string // as written, to be compared with the path
	Parts []model.RewritePart
}

func rewriteTarget() Annotation {
	return Annotation{
		Name: "rewrite-target",
		Doc: "Replaces the whole path of the request before it is sent to the backend. $1 to $9 stand for the capture " +
			"groups of the path, which is read as a regular expression with all that use-regex brings, unless it equals the " +
			"target. What follows a \"?\" becomes the query, in front of the request's own.",
		Values: fmt.Sprintf("a path that begins with \"/\" or with a capture group; at most %d bytes and %d parts",
			maxRewriteBytes, maxRewriteParts),
		Default: "the path stays",
		Example: "/$2",
		Risk:    Medium,
		Scope:   Host,
		parse: func(value string, into *Values) error {
			parts, err := ParseRewriteTarget(value)
			if err == nil {
				into.RewriteTarget = RewriteTarget{Text: value, Parts: parts}
			}
			return err
		},
	}
}

// ParseRewriteTarget splits a rewrite-target into literals and capture groups. Two literals never follow
// each other, no literal is empty. A "$" that does not begin a group is refused: nginx would read a variable.
func ParseRewriteTarget(s string) ([]model.RewritePart, error) {
	if s == "" {
		return nil, errors.New("the value is empty; write a path or remove the annotation")
	}
	if len(s) > maxRewriteBytes {
		return nil, fmt.Errorf("the value has %d bytes; write at most %d", len(s), maxRewriteBytes)
	}
	if i := strings.IndexFunc(s, isControl); i >= 0 {
		return nil, fmt.Errorf("%s holds the control byte %q; write the path without it", shown(s), s[i:i+1])
	}
	parts, err := splitGroups(s)
	if err != nil {
		return nil, err
	}
	if len(parts) > maxRewriteParts {
		return nil, fmt.Errorf("the value has %d parts; write at most %d", len(parts), maxRewriteParts)
	}
	if parts[0].Group == 0 && parts[0].Literal[0] != '/' {
		return nil, fmt.Errorf("%s is not a path; begin it with \"/\" or a capture group", shown(s))
	}
	return parts, nil
}

func splitGroups(s string) ([]model.RewritePart, error) {
	var parts []model.RewritePart
	for s != "" {
		literal, rest, found := strings.Cut(s, "$")
		if literal != "" {
			parts = append(parts, model.RewritePart{Literal: literal})
		}
		if !found {
			break
		}
		if rest == "" || rest[0] < '1' || rest[0] > '9' {
			return nil, fmt.Errorf("%s: after \"$\" only a capture group 1 to 9 may follow; nginx variables are not served",
				shown("$"+rest))
		}
		parts = append(parts, model.RewritePart{Group: int(rest[0] - '0')})
		s = rest[1:]
	}
	return parts, nil
}

func isControl(r rune) bool { return r < 0x20 || r == 0x7f }
