package config

import (
	"reflect"
	"strings"
)

// Check says what is wrong with a Config that was not loaded: errors as those of Load, without places. It does not ask for a
// source.
func (c Config) Check() error { return join(validate(&c)) }

// Changes gives the keys whose values differ between c and next, in the order of Keys.
func (c Config) Changes(next Config) []Key {
	var changed []Key
	for _, k := range Keys() {
		if !reflect.DeepEqual(field(&c, k.Name).Interface(), field(&next, k.Name).Interface()) {
			changed = append(changed, k)
		}
	}
	return changed
}

// Reloaded gives c with what `headgate reload` takes from next: the values of all keys but those that a running daemon
// cannot change. The keys of the VIP process are taken, too: the daemon has no use for them. c stays as it is.
func (c Config) Reloaded(next Config) Config {
	for _, k := range Keys() {
		if k.Change != ByRestart {
			field(&c, k.Name).Set(field(&next, k.Name))
		}
	}
	return c
}

// Value gives the value of a key, which must be a Name of Keys.
func (c Config) Value(key string) any { return field(&c, key).Interface() }

// field finds the field of a key, which must be a Name of Keys.
func field(c *Config, key string) reflect.Value {
	value := reflect.ValueOf(c).Elem()
	for part := range strings.SplitSeq(key, ".") {
		value = value.Field(fieldIndex(value.Type(), part))
	}
	return value
}

func fieldIndex(t reflect.Type, tag string) int {
	for i := range t.NumField() {
		if t.Field(i).Tag.Get("mapstructure") == tag {
			return i
		}
	}
	panic("config: no field has the key " + tag) // a test holds Keys and Config equal
}
