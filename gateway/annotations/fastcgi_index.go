package annotations

import "headgate/gateway/model"

func fastCGIIndex() Annotation {
	return Annotation{
		Name:    "fastcgi-index",
		Doc:     "Name of the script that is asked for where the path ends with \"/\", with backend-protocol FCGI.",
		Values:  `the name of a file: letters, digits, ".", "_" and "-"; at most 128 bytes`,
		Default: "none",
		Example: "index.php",
		Risk:    Medium,
		Scope:   Paths,
		parse: func(value string, into *Values) error {
			index, err := model.ParseFastCGIIndex(value)
			if err == nil {
				into.FastCGIIndex = index
			}
			return err
		},
		idle: func(v *Values) string {
			if v.Proxying == nil || v.Proxying.Protocol != model.ProtocolFastCGI {
				return `backend-protocol is not "FCGI"`
			}
			return ""
		},
	}
}
