package annotations

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"headgate/gateway/model"
)

// The limits of upstream-hash-by. They bound what a request can cost.
const (
	maxHashBytes = 512
	maxHashParts = 8
	minSubset    = 1
	maxSubset    = 1000
	// defaultSubset is ingress-nginx's.
	defaultSubset = 3
)

// hashVariables are the variables of nginx that may be hashed, besides $http_…, $cookie_… and $arg_…. A variable
// that is missing here says nothing about the client or its request, or nothing that stays the same.
func hashVariables() []string {
	return []string{
		"args", "content_length", "content_type", "host", "query_string", "remote_addr", "remote_user", "request_id", "request_method",
		"request_uri", "scheme", "server_port", "ssl_server_name", "uri",
	}
}

func upstreamHashBy() Annotation {
	return Annotation{
		Name: "upstream-hash-by",
		Doc: "Picks the peer by a consistent hash of the request: requests with the same value reach the same peer, and when " +
			"peers come or go only their share moves. Variables of nginx, written $name or ${name}, may be joined with each other and " +
			"with text. A request for which all of them are empty gets any peer.",
		Values: fmt.Sprintf("text with at least one of $%s, $http_NAME, $cookie_NAME or $arg_NAME; at most %d bytes and %d parts",
			strings.Join(hashVariables(), ", $"), maxHashBytes, maxHashParts),
		Default: "load-balance picks the peer",
		Example: "$request_uri$host",
		Risk:    High,
		Scope:   Paths,
		parse: func(value string, into *Values) error {
			parts, err := ParseHashBy(value)
			if err == nil {
				into.balancing().Hash = parts
			}
			return err
		},
	}
}

func upstreamHashBySubset() Annotation {
	return Annotation{
		Name: "upstream-hash-by-subset",
		Doc: "Lets upstream-hash-by choose a group of upstream-hash-by-subset-size peers, of which each request gets one at random: less even " +
			"loads than those of a single peer become bearable.",
		Values:  boolValues,
		Default: "false",
		Example: "true",
		Risk:    Low,
		Scope:   Paths,
		parse:   inBooleans(func(v *Values, on bool) { v.balancing().HashSubset = on }),
		idle:    withoutHash,
	}
}

func upstreamHashBySubsetSize() Annotation {
	return Annotation{
		Name:    "upstream-hash-by-subset-size",
		Doc:     "How many peers are in a group of upstream-hash-by-subset.",
		Values:  numberValues(minSubset, maxSubset),
		Default: fmt.Sprint(defaultSubset),
		Example: "3",
		Risk:    Low,
		Scope:   Paths,
		parse:   inNumbers(minSubset, maxSubset, func(v *Values, n int) { v.balancing().HashSubsetSize = n }),
		idle: func(v *Values) string {
			if why := withoutHash(v); why != "" {
				return why
			}
			if !v.Balancing.HashSubset {
				return `write upstream-hash-by-subset: "true" to form groups`
			}
			return ""
		},
	}
}

func withoutHash(v *Values) string {
	if len(v.Balancing.Hash) == 0 {
		return "there is no upstream-hash-by; write it, or remove this one"
	}
	return ""
}

// Subset is the size of the groups of upstream-hash-by-subset, or 0 without it.
func (b *Balancing) Subset() int {
	switch {
	case !b.HashSubset || len(b.Hash) == 0:
		return 0
	case b.HashSubsetSize > 0:
		return b.HashSubsetSize
	}
	return defaultSubset
}

// ParseHashBy splits a value of upstream-hash-by into literals and values of the request. At least one part is
// no literal, no literal is empty, two never follow each other.
func ParseHashBy(s string) ([]model.HashPart, error) {
	switch {
	case s == "":
		return nil, errors.New("the value is empty; write what to hash or remove the annotation")
	case len(s) > maxHashBytes:
		return nil, fmt.Errorf("the value has %d bytes; write at most %d", len(s), maxHashBytes)
	}
	if i := strings.IndexFunc(s, isControl); i >= 0 {
		return nil, fmt.Errorf("%s holds the control byte %q; write the value without it", shown(s), s[i:i+1])
	}
	var parts []model.HashPart
	for s != "" {
		literal, rest, found := strings.Cut(s, "$")
		if literal != "" {
			parts = append(parts, model.HashPart{Kind: model.HashLiteral, Name: literal})
		}
		if !found {
			break
		}
		part, after, err := cutVariable(rest)
		if err != nil {
			return nil, err
		}
		parts = append(parts, part)
		s = after
	}
	if !slices.ContainsFunc(parts, func(p model.HashPart) bool { return p.Kind != model.HashLiteral }) {
		return nil, errors.New("the value holds no variable, so every request would get the same peer; write one such as $request_uri")
	}
	if len(parts) > maxHashParts {
		return nil, fmt.Errorf("the value has %d parts; write at most %d", len(parts), maxHashParts)
	}
	return parts, nil
}

// cutVariable reads the name of a variable at the start of s: name or {name}.
func cutVariable(s string) (model.HashPart, string, error) {
	name, rest := s, ""
	if braced, ok := strings.CutPrefix(s, "{"); ok {
		var closed bool
		if name, rest, closed = strings.Cut(braced, "}"); !closed {
			return model.HashPart{}, "", fmt.Errorf("%s lacks the closing brace; write ${name}", shown("$"+s))
		}
		if strings.IndexFunc(name, notOfName) >= 0 {
			return model.HashPart{}, "", fmt.Errorf("%s is no variable; write letters, digits and \"_\" between the braces", shown("${"+name+"}"))
		}
	} else if i := strings.IndexFunc(s, notOfName); i >= 0 {
		name, rest = s[:i], s[i:]
	}
	part, ok := hashPart(name)
	if !ok {
		return model.HashPart{}, "", fmt.Errorf("%s cannot be hashed; write one of $%s, $http_NAME, $cookie_NAME or $arg_NAME",
			shown("$"+name), strings.Join(hashVariables(), ", $"))
	}
	return part, rest, nil
}

// hashPart gives the part that a variable of nginx, or of ingress-nginx's own, means. nginx does not tell
// capitals from small letters in names of variables.
func hashPart(name string) (model.HashPart, bool) {
	lower := strings.ToLower(name)
	switch lower {
	case "binary_remote_addr", "the_real_ip":
		return model.HashPart{Kind: model.HashVariable, Name: "remote_addr"}, true
	case "best_http_host":
		return model.HashPart{Kind: model.HashHeader, Name: "host"}, true
	}
	if slices.Contains(hashVariables(), lower) {
		return model.HashPart{Kind: model.HashVariable, Name: lower}, true
	}
	for prefix, kind := range map[string]model.HashKind{"http_": model.HashHeader, "cookie_": model.HashCookie, "arg_": model.HashArgument} {
		rest, found := strings.CutPrefix(lower, prefix)
		if !found || rest == "" {
			continue
		}
		if kind == model.HashHeader {
			return model.HashPart{Kind: kind, Name: strings.ReplaceAll(rest, "_", "-")}, true
		}
		return model.HashPart{Kind: kind, Name: name[len(prefix):]}, true
	}
	return model.HashPart{}, false
}

func notOfName(r rune) bool {
	return r != '_' && (r < '0' || r > '9') && (r < 'a' || r > 'z') && (r < 'A' || r > 'Z')
}
