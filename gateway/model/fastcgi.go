package model

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"
)

// ErrFastCGI is what every error of ParseFastCGIParam and ParseFastCGIIndex wraps.
var ErrFastCGI = errors.New("not a FastCGI parameter")

const (
	maxFastCGINameBytes  = 128
	maxFastCGIValueBytes = 4096
)

var (
	fastCGIName  = regexp.MustCompile(`^[A-Z_][A-Z0-9_]*$`)
	fastCGIIndex = regexp.MustCompile(`^[A-Za-z0-9._-]+$`)
)

// FastCGIVariables lists the variables of nginx that a parameter may hold: what nginx's own fastcgi.conf uses.
func FastCGIVariables() []string {
	return []string{
		"args", "content_length", "content_type", "document_root", "document_uri", "fastcgi_path_info",
		"fastcgi_script_name", "host", "https", "query_string", "remote_addr", "remote_port", "remote_user",
		"request_method", "request_scheme", "request_uri", "scheme", "server_addr", "server_name", "server_port",
		"server_protocol", "uri",
	}
}

// ParseFastCGIParam reads a parameter of FastCGI: its name is of A-Z, 0-9 and "_", its value is one variable of
// FastCGIVariables ("$request_uri") or text without "$" and control characters, of at most 4096 bytes. Every error
// wraps ErrFastCGI and says what to write instead.
func ParseFastCGIParam(name, value string) (FastCGIParam, error) {
	if len(name) > maxFastCGINameBytes || !fastCGIName.MatchString(name) {
		return FastCGIParam{}, fmt.Errorf("%w: the name %.40q; write A-Z, 0-9 and \"_\", such as SCRIPT_FILENAME", ErrFastCGI, name)
	}
	if variable, ok := strings.CutPrefix(value, "$"); ok {
		if !slices.Contains(FastCGIVariables(), variable) {
			return FastCGIParam{}, fmt.Errorf("%w: %s: %.40q is no variable that may be used; write one of $%s", ErrFastCGI, name, value,
				strings.Join(FastCGIVariables(), ", $"))
		}
		return FastCGIParam{Name: name, Variable: variable}, nil
	}
	if err := checkFastCGIText(value); err != nil {
		return FastCGIParam{}, fmt.Errorf("%w: %s: %w", ErrFastCGI, name, err)
	}
	return FastCGIParam{Name: name, Value: value}, nil
}

func checkFastCGIText(s string) error {
	switch {
	case len(s) > maxFastCGIValueBytes:
		return fmt.Errorf("%d bytes long, write at most %d", len(s), maxFastCGIValueBytes)
	case !utf8.ValidString(s):
		return errors.New("it is not UTF-8")
	case strings.Contains(s, "$"):
		return fmt.Errorf("%.40q: a variable stands alone; write plain text, or one variable and nothing else", s)
	}
	for _, r := range s {
		if r < ' ' || r == 0x7f {
			return fmt.Errorf("%.40q holds a control character; write plain text on one line", s)
		}
	}
	return nil
}

// ParseFastCGIIndex reads a fastcgi_index: the name of a file, without a folder. Every error wraps ErrFastCGI.
func ParseFastCGIIndex(s string) (string, error) {
	if len(s) > maxFastCGINameBytes || !fastCGIIndex.MatchString(s) {
		return "", fmt.Errorf("%w: the index %.40q; write the name of a file, such as index.php", ErrFastCGI, s)
	}
	return s, nil
}
