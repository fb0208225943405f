package annotations

import (
	"fmt"
	"strings"
)

// inWords makes a parse function for one of some words.
func inWords(words []string, set func(*Values, string)) func(string, *Values) error {
	return func(value string, into *Values) error {
		for _, w := range words {
			if value == w {
				set(into, w)
				return nil
			}
		}
		return fmt.Errorf("%s is not known; write %s", shown(value), wordValues(words))
	}
}

// inWordsOfAnyCase is inWords for words that ingress-nginx takes in capitals and small letters; set gets the
// word as it stands in the list.
func inWordsOfAnyCase(words []string, set func(*Values, string)) func(string, *Values) error {
	return func(value string, into *Values) error {
		for _, w := range words {
			if strings.EqualFold(value, w) {
				set(into, w)
				return nil
			}
		}
		return fmt.Errorf("%s is not known; write %s", shown(value), wordValues(words))
	}
}

// onOff makes a parse function for nginx's flags.
func onOff(set func(*Values, bool)) func(string, *Values) error {
	return inWords([]string{"on", "off"}, func(v *Values, word string) { set(v, word == "on") })
}

const onOffValues = `"on" or "off"`

// wordValues documents the values of inWords: `"a", "b" or "c"`.
func wordValues(words []string) string {
	quoted := make([]string, len(words))
	for i, w := range words {
		quoted[i] = `"` + w + `"`
	}
	if len(quoted) < 2 {
		return strings.Join(quoted, "")
	}
	return strings.Join(quoted[:len(quoted)-1], ", ") + " or " + quoted[len(quoted)-1]
}
