package luastate

import "headgate/gateway/model"

// encodeSettings writes what Lua needs of the settings; nginx.conf holds the rest:
//
//	{"redirectPort" (left out for 443), "noTLSRedirect": [path prefix], "defaultCertificate": id}
func encodeSettings(s model.Settings) []byte {
	var j jsonWriter
	j.object(func() {
		if s.RedirectPort != 443 && s.RedirectPort != 0 {
			j.field("redirectPort").number(int64(s.RedirectPort))
		}
		if len(s.NoTLSRedirectPrefixes) > 0 {
			j.field("noTLSRedirect").array(len(s.NoTLSRedirectPrefixes), func(i int) {
				j.text(s.NoTLSRedirectPrefixes[i])
			})
		}
		if s.DefaultCertificate != "" {
			j.field("defaultCertificate").text(string(s.DefaultCertificate))
		}
	})
	return j.buf
}
