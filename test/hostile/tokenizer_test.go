package hostile

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// directive is one directive of nginx.conf. A block of Lua is one argument.
type directive struct {
	name  string
	args  []string
	block []directive
	line  int
}

// tokens takes nginx.conf apart as nginx does (ngx_conf_read_token), but for what headgate never writes: anything
// doubtful is an error.
type tokens struct {
	text string
	at   int
	line int
}

func parseConf(text string) ([]directive, error) {
	t := &tokens{text: text, line: 1}
	list, err := t.block(false)
	if err != nil {
		return nil, fmt.Errorf("line %d: %w", t.line, err)
	}
	return list, nil
}

// block reads directives up to the brace that closes it, or to the end of the file.
func (t *tokens) block(inner bool) ([]directive, error) {
	var list []directive
	for {
		word, quoted, err := t.word()
		if err != nil {
			return nil, err
		}
		switch {
		case word == "" && !quoted:
			if inner {
				return nil, fmt.Errorf("the file ends within a block")
			}
			return list, nil
		case word == "}" && !quoted:
			if !inner {
				return nil, fmt.Errorf("a brace closes nothing")
			}
			return list, nil
		case quoted || word == ";" || word == "{":
			return nil, fmt.Errorf("%q where a directive begins", word)
		}
		d, err := t.directive(word)
		if err != nil {
			return nil, err
		}
		list = append(list, d)
	}
}

func (t *tokens) directive(name string) (directive, error) {
	d := directive{name: name, line: t.line}
	for {
		word, quoted, err := t.word()
		switch {
		case err != nil:
			return d, err
		case quoted:
			d.args = append(d.args, word)
		case word == "" || word == "}":
			return d, fmt.Errorf("directive %s has no end", name)
		case word == ";":
			return d, nil
		case word == "{" && strings.HasSuffix(name, "_by_lua_block"):
			code, err := t.lua()
			d.args = append(d.args, code)
			return d, err
		case word == "{" && (name == "map" || name == "geo"):
			d.block, err = t.pairs()
			return d, err
		case word == "{":
			d.block, err = t.block(true)
			return d, err
		default:
			d.args = append(d.args, word)
		}
	}
}

// pairs reads the body of a map: its first words are data, and may be quoted.
func (t *tokens) pairs() ([]directive, error) {
	var list []directive
	for {
		word, quoted, err := t.word()
		if err != nil {
			return nil, err
		}
		if word == "}" && !quoted {
			return list, nil
		}
		d, err := t.directive(word)
		if err != nil {
			return nil, err
		}
		list = append(list, d)
	}
}

// word gives a word, a quoted string, or one of ; { }; "" at the end.
func (t *tokens) word() (word string, quoted bool, err error) {
	for t.at < len(t.text) {
		c := t.text[t.at]
		switch c {
		case '\n':
			t.line++
			t.at++
		case ' ', '\t', '\r':
			t.at++
		case '#':
			if end := strings.IndexByte(t.text[t.at:], '\n'); end >= 0 {
				t.at += end
			} else {
				t.at = len(t.text)
			}
		case ';', '{', '}':
			t.at++
			return string(c), false, nil
		case '"', '\'':
			return t.quoted(c)
		default:
			return t.bare()
		}
	}
	return "", false, nil
}

func (t *tokens) quoted(mark byte) (string, bool, error) {
	var b strings.Builder
	for i := t.at + 1; i < len(t.text); i++ {
		switch c := t.text[i]; c {
		case '\n':
			return "", false, fmt.Errorf("a line ends within quotes")
		case '\\':
			i++
			if i < len(t.text) && !strings.ContainsRune("\"'\\", rune(t.text[i])) {
				b.WriteByte('\\') // nginx takes it away before these three, and leaves it before most others
			}
			if i < len(t.text) {
				b.WriteByte(t.text[i])
			}
		case mark:
			t.at = i + 1
			if t.at < len(t.text) && !strings.ContainsRune(" \t\r\n;{)", rune(t.text[t.at])) {
				return "", false, fmt.Errorf("%q right behind a quoted string", t.text[t.at])
			}
			return b.String(), true, nil
		default:
			b.WriteByte(c)
		}
	}
	return "", false, fmt.Errorf("a quoted string has no end")
}

func (t *tokens) bare() (string, bool, error) {
	start := t.at
	for t.at < len(t.text) {
		switch c := t.text[t.at]; c {
		case ' ', '\t', '\r', '\n', ';', '{', '}':
			if c == '{' && t.text[t.at-1] == '$' {
				return "", false, fmt.Errorf("a variable in braces")
			}
			return t.text[start:t.at], false, nil
		case '"', '\'', '\\':
			return "", false, fmt.Errorf("%q within a bare word", c)
		}
		t.at++
	}
	return t.text[start:], false, nil
}

// lua reads a block of Lua to its closing brace; the brace that opens it is read already.
func (t *tokens) lua() (string, error) {
	start, depth := t.at, 1
	for ; t.at < len(t.text); t.at++ {
		switch c := t.text[t.at]; c {
		case '\n':
			t.line++
		case '"':
			end := strings.IndexAny(t.text[t.at+1:], "\"\n\\")
			if end < 0 || t.text[t.at+1+end] != '"' {
				return "", fmt.Errorf("a string of Lua that is not plain")
			}
			t.at += 1 + end
		case '-', '[', '\'':
			if strings.HasPrefix(t.text[t.at:], "--") || strings.HasPrefix(t.text[t.at:], "[[") || strings.HasPrefix(t.text[t.at:], "[=") || c == '\'' {
				return "", fmt.Errorf("code of Lua that is more than a call")
			}
		case '{':
			depth++
		case '}':
			if depth--; depth == 0 {
				t.at++
				return strings.TrimSpace(t.text[start : t.at-1]), nil
			}
		}
	}
	return "", fmt.Errorf("a block of Lua has no end")
}

// directiveNames are those that headgate writes, by context. A new one belongs here once somebody has looked at
// where its values come from.
func directiveNames() map[string][]string {
	profile := []string{"client_max_body_size", "client_body_buffer_size", "proxy_http_version", "proxy_set_header", "grpc_buffer_size", "grpc_set_header", "fastcgi_param", "fastcgi_index"}
	for _, module := range []string{"proxy", "grpc", "fastcgi"} {
		for _, word := range []string{
			"buffering", "request_buffering", "buffer_size", "buffers", "busy_buffers_size", "max_temp_file_size", "next_upstream", "pass",
			"connect_timeout", "send_timeout", "read_timeout", "ssl_protocols", "ssl_ciphers", "ssl_name", "ssl_server_name", "ssl_verify",
			"ssl_verify_depth", "ssl_trusted_certificate", "ssl_certificate", "ssl_certificate_key",
		} {
			profile = append(profile, module+"_"+word)
		}
	}
	return map[string][]string{
		"":       {"load_module", "user", "daemon", "worker_processes", "worker_rlimit_nofile", "pid", "error_log", "pcre_jit", "events", "http"},
		"events": {"worker_connections", "multi_accept"},
		"http": {"lua_package_path", "lua_package_cpath", "lua_shared_dict", "lua_regex_match_limit", "lua_regex_cache_max_entries", "init_by_lua_block", "init_worker_by_lua_block",
			"client_body_temp_path", "proxy_temp_path", "fastcgi_temp_path", "uwsgi_temp_path", "scgi_temp_path", "server_tokens", "sendfile", "tcp_nopush", "tcp_nodelay",
			"reset_timedout_connection", "keepalive_timeout", "keepalive_requests", "client_header_buffer_size", "client_header_timeout", "large_client_header_buffers",
			"client_body_buffer_size", "client_body_timeout", "http2_max_concurrent_streams", "variables_hash_bucket_size", "variables_hash_max_size", "map_hash_bucket_size",
			"proxy_http_version", "proxy_connect_timeout", "proxy_send_timeout", "proxy_read_timeout", "proxy_buffer_size", "proxy_buffers", "proxy_max_temp_file_size",
			"proxy_redirect", "proxy_intercept_errors", "proxy_ignore_headers", "proxy_next_upstream_timeout", "proxy_next_upstream_tries", "access_log", "log_format", "ssl_protocols",
			"ssl_prefer_server_ciphers", "ssl_ciphers", "ssl_ecdh_curve", "ssl_session_cache", "ssl_session_timeout", "ssl_session_tickets", "ssl_buffer_size", "map", "geo",
			"set_real_ip_from", "real_ip_header", "real_ip_recursive", "proxy_set_header", "upstream", "server", "proxy_headers_hash_max_size", "proxy_headers_hash_bucket_size"},
		"upstream": {"server", "balancer_by_lua_block", "keepalive", "keepalive_time", "keepalive_timeout", "keepalive_requests"},
		"server": {"listen", "http2", "server_name", "ssl_certificate", "ssl_certificate_key", "ssl_certificate_by_lua_block", "proxy_hide_header", "proxy_set_header", "add_header",
			"server_rewrite_by_lua_block", "log_by_lua_block", "header_filter_by_lua_block", "location", "access_log", "client_max_body_size", "client_body_buffer_size", "client_body_in_single_buffer", "keepalive_timeout",
			"default_type", "error_page", "large_client_header_buffers", "proxy_request_buffering", "proxy_buffering", "proxy_buffer_size", "proxy_buffers", "proxy_next_upstream"},
		"location": append(profile, "grpc_ignore_headers", "fastcgi_ignore_headers", "content_by_lua_block", "return", "if", "internal", "default_type", "access_log"),
		"if":       {"return"},
	}
}

// unexpected lists the directives that stand where headgate writes none, and the arguments that hold a mark.
func unexpected(list []directive, context, mark string) []string {
	var found []string
	names := directiveNames()[context]
	for _, d := range list {
		if !slices.Contains(names, d.name) {
			found = append(found, fmt.Sprintf("line %d: %s in %q", d.line, d.name, context))
		}
		for _, a := range d.args {
			if strings.Contains(a, mark) {
				found = append(found, fmt.Sprintf("line %d: %s %q", d.line, d.name, a))
			}
		}
		if d.name == "map" || d.name == "geo" {
			for _, pair := range d.block {
				if strings.Contains(pair.name+strings.Join(pair.args, " "), mark) {
					found = append(found, fmt.Sprintf("line %d: %s", pair.line, pair.name))
				}
			}
			continue
		}
		found = append(found, unexpected(d.block, d.name, mark)...)
	}
	return found
}

// checkConf says what is wrong with the text of an nginx.conf that hostile strings had a part in; each holds mark.
func checkConf(text, mark string) error {
	list, err := parseConf(text)
	if err != nil {
		return err
	}
	if found := unexpected(list, "", mark); len(found) > 0 {
		return fmt.Errorf("not expected: %s", strings.Join(found, ", "))
	}
	if strings.Contains(text, mark) {
		return fmt.Errorf("the text holds %q outside of any directive", mark)
	}
	return nil
}

// The tokenizer finds what it is there to find.
func TestTokenizer(t *testing.T) {
	const good = "events { worker_connections 1; }\nhttp { server { listen 1; location / { return 200 \"a\\\"b;}\"; } } }\n"
	if err := checkConf(good, "evil"); err != nil {
		t.Error(err)
	}
	for _, bad := range []string{
		"http { server { listen 1; evil on; } }",
		"http { server { listen evil; } }",
		"http { server { listen 1; } } }",
		"http { server { listen 1; location / { return 200 \"a\"b; } } }",
		"http { server { listen 1; location / { root /; } } }",
		"http { server { listen 1; location / { content_by_lua_block { os.execute('x') } } } }",
		"http { server { listen 1; location / { content_by_lua_block { a() -- } \n } } } }",
		"http { server { server_name \"a\n\"; } }",
		"http { server { server_name a\\ b; } }",
		"http { server { server_name ${x}; } }",
		"http { map $a $b { default evil; } }",
		"load_module x.so; http { # evil\n }",
		"http { server {",
		"http",
		"location / { }",
	} {
		if err := checkConf(bad, "evil"); err == nil {
			t.Errorf("nothing found in %q", bad)
		}
	}
}
